"""Wrong arguments end with one line, with cause and cure, and code 2."""

import pytest

from fedbilevel.__main__ import main
from tests.commands.typing_in import QUICK

pytestmark = pytest.mark.slow

TABLE = {
    # Subcommands.
    "rum": "fedbilevel: COMMAND is 'rum'. Did you mean run? See fedbilevel --help.",
    "": "fedbilevel: COMMAND is missing. Give one of run, resume, ",
    # Unknown options.
    "run a.toml --rouns 3": "fedbilevel run: --rouns is not an option. Did you mean "
    "--rounds? See fedbilevel run a.toml --help.",
    "run a.toml --dryrun": "Did you mean --dry-run? See",
    "run a.toml algorithm:SimFBO --algorithm.batchsize 3": "Did you mean "
    "--algorithm.batch-size? See",
    "tune a.toml --trails 3": "fedbilevel tune: --trails is not an option. Did you "
    "mean --trials? See fedbilevel tune a.toml --help.",
    "federate a.toml --federation.quorums 3": "fedbilevel federate: "
    "--federation.quorums is not an option. Did you mean --federation.quorum? See",
    "plan there --acuracy 3": "fedbilevel plan: --acuracy is not an option. Did you "
    "mean --accuracy? See fedbilevel plan --help.",
    "doctor --jsn": "fedbilevel doctor: --jsn is not an option. Did you mean --json?",
    "compare there --zzz": "fedbilevel compare: --zzz is not an option. See fedb",
    # Missing arguments.
    "run": "fedbilevel run: FILE is missing. Give FILE after fedbilevel run. See",
    "resume": "fedbilevel resume: RUN_DIRECTORY is missing. Give RUN_DIRECTORY after",
    "tune": "fedbilevel tune: FILE is missing. Give FILE after fedbilevel tune. See",
    "federate": "fedbilevel federate: FILE is missing. Give FILE after",
    "compare": "fedbilevel compare: RUN is missing. Give RUN after",
    "plan": "fedbilevel plan: RUN_DIRECTORY is missing. Give RUN_DIRECTORY after",
    "completion": "fedbilevel completion: SHELL is missing. Give one of bash, zsh, "
    "fish. See fedbilevel completion --help.",
    # Wrong values.
    "run a.toml --rounds many": "fedbilevel run: --rounds is 'many'. Give a whole "
    "number. See fedbilevel run a.toml --help.",
    "run a.toml --data.label-noise x": "--data.label-noise is 'x'. Give a number. See",
    "run a.toml --norm-limit x": "--norm-limit is 'x'. Give a number. See",
    "run a.toml --data.name minst": "--data.name is 'minst'. Did you mean mnist? See",
    "run a.toml --algorithm.learning-rate fast": "--algorithm.learning-rate: give a "
    "number or a TOML table, not 'fast'. See",
    "run a.toml --server-optimiser [": "give a TOML table, not '['. See",
    "run a.toml algorithm:FedNest --algorithm.learning-rate 1": "Required options are "
    "missing. Give --algorithm.series.terms, --algorithm.series.scale. See",
    "federate a.toml --rounds 1.5": "fedbilevel federate: --rounds is '1.5'. Give a w",
    "tune a.toml --seeds x": "fedbilevel tune: --seeds is 'x'. Give a whole number.",
    "plan there --devices x": "fedbilevel plan: --devices is 'x'. Give a whole numb",
    "compare there --against x": "fedbilevel compare: --against: 'x' is not a cost",
    "completion bsh": "fedbilevel completion: SHELL is 'bsh'. Did you mean bash? See",
    # No value, and arguments in excess.
    "run a.toml --rounds": "fedbilevel run: --rounds has no value. Give the value",
    "plan there --devices": "fedbilevel plan: --devices has no value. Give the value",
    "run a.toml extra": "fedbilevel run: extra is neither an option nor a type such",
    "plan there extra": "fedbilevel plan: extra is one argument too many. Remove it.",
    "run --json a.toml": "fedbilevel run: --json comes before FILE. Give FILE before",
}


@pytest.mark.parametrize("arguments", TABLE)
def test_wrong_arguments_are_refused_in_one_line(
    arguments, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text(QUICK)
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert TABLE[arguments] in err
    assert err.endswith(" --help.\n")


def test_the_suggested_command_quotes_the_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my file;x.toml").write_text(QUICK)
    assert main(["run", "my file;x.toml", "--rouns", "3"]) == 2
    assert "See fedbilevel run 'my file;x.toml' --help." in capsys.readouterr().err
