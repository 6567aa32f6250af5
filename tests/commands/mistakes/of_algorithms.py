"""Mistakes in the algorithm of an experiment file."""

from tests.commands.mistakes.mistake import ALGORITHM, of_file

SERIES = (
    '[algorithm]\nname = "LocalBSGM"\nlearning_rate = 0.1\n[algorithm.hypergradient]\n'
)

MISTAKES = (
    of_file(
        "an unknown algorithm",
        '[algorithm]\nname = "FedBio"\nlearning_rate = 0.1',
        "unknown name 'FedBio'",
        "a.toml, line 2: algorithm.name",
        "did you mean FedBiO?",
    ),
    of_file(
        "no name",
        "[algorithm]\nlearning_rate = 0.1",
        "the key is missing",
        "a.toml, line 1: algorithm.name",
        "give one of auto, F2SA, FedBiO, FedBiOAcc, FedNest, LFedNest, LocalBSGM, "
        "LocalBSGVRM, ShroFBO, SimFBO.",
    ),
    of_file(
        "no table",
        'algorithm = "FedBiO"',
        'not "FedBiO"',
        "a.toml, line 1: algorithm:",
        'give "auto" or a table such as { name = "FedBiO" }',
    ),
    of_file(
        "an unknown setting",
        ALGORITHM + "upper_rat = 1.0",
        "unknown key algorithm.upper_rat;",
        "a.toml, line 4",
        "did you mean upper_rate?",
    ),
    of_file(
        "no rate",
        '[algorithm]\nname = "FedBiO"',
        "is missing",
        "a.toml, line 1: algorithm.learning_rate",
        "add the key to [algorithm].",
    ),
    of_file(
        "a rate as text",
        ALGORITHM.replace("0.1", '"fast"'),
        'not "fast".',
        "a.toml, line 3: algorithm.learning_rate:",
        "give a number",
    ),
    of_file(
        "a rate of true",
        ALGORITHM.replace("0.1", "true"),
        "not true.",
        "a.toml, line 3: algorithm.learning_rate:",
        "give a number",
    ),
    of_file(
        "an algorithm in lower case",
        ALGORITHM.replace("FedBiO", "fedbio"),
        "unknown name 'fedbio'",
        "a.toml, line 2: algorithm.name",
        "did you mean FedBiO?",
    ),
    of_file(
        "another algorithm in lower case",
        ALGORITHM.replace("FedBiO", "localbsgm"),
        "unknown name 'localbsgm'",
        "a.toml, line 2: algorithm.name",
        "did you mean LocalBSGM?",
    ),
    of_file(
        "auto with the keys of another algorithm",
        ALGORITHM.replace("FedBiO", "auto") + "lower_rate = 1.0",
        'line 3: unknown key algorithm.learning_rate; "auto" chooses this setting',
        "\na.toml, line 4: unknown key algorithm.lower_rate;",
        "delete the key.",
    ),
    of_file(
        "a list of algorithms",
        ALGORITHM.replace("[algorithm]", "[[algorithm]]"),
        "is a list of tables, [[algorithm]]",
        "a.toml, line 1: algorithm",
        "write a single table, [algorithm].",
    ),
    of_file(
        "a rate of 400 digits",
        ALGORITHM.replace("0.1", "9" * 400),
        "not 999999999999999999999999999999",
        "a.toml, line 3: algorithm.learning_rate:",
        "give a number of at most 300 digits",
    ),
    of_file(
        "a batch of too many examples",
        ALGORITHM + "batch_size = 99999999999999999999",
        "not 99999999999999999999.",
        "a.toml, line 4: algorithm.batch_size:",
        "give a whole number, at most 2147483647",
    ),
    of_file(
        "an optimiser that is a number",
        "server_optimiser = 3\n" + ALGORITHM,
        "not 3.",
        "a.toml, line 1: server_optimiser:",
        'give a table such as { name = "adam", learning_rate = 0.01 }',
    ),
    of_file(
        "an optimiser without a name",
        "server_optimiser = {learning_rate = 0.1}\n" + ALGORITHM,
        "the key is missing",
        "a.toml, line 1: server_optimiser.name:",
        'give the name of an optax optimiser, such as "adam".',
    ),
    of_file(
        "an optimiser with a rate as text",
        '[server_optimiser]\nname = "adam"\nlearning_rate = "fast"\n' + ALGORITHM,
        'not "fast".',
        "a.toml, line 3: server_optimiser.learning_rate:",
        "give a number",
    ),
    of_file(
        "an optimiser with a rate of true",
        '[server_optimiser]\nname = "adam"\nlearning_rate = true\n' + ALGORITHM,
        "not true.",
        "a.toml, line 3: server_optimiser.learning_rate:",
        "give a number",
    ),
    of_file(
        "no local steps",
        ALGORITHM + "local_steps = 0",
        "not 0.",
        "a.toml, line 4: algorithm.local_steps:",
        "give a whole number, at least 1",
    ),
    of_file(
        "half a step",
        ALGORITHM + "local_steps = 1.5",
        "not 1.5.",
        "a.toml, line 4: algorithm.local_steps:",
        "give a whole number",
    ),
    of_file(
        "no batch",
        ALGORITHM + "batch_size = 0",
        "not 0.",
        "a.toml, line 4: algorithm.batch_size:",
        "give a whole number, at least 1",
    ),
    of_file(
        "an unknown estimator",
        SERIES + 'name = "Neuman"\nterms = 3\nscale = 0.1',
        "unknown name 'Neuman'",
        "a.toml, line 5: algorithm.hypergradient.name:",
        "did you mean NeumannSeries?",
    ),
    of_file(
        "a negative series",
        SERIES + 'name = "NeumannSeries"\nterms = -1\nscale = 0.1',
        "not -1.",
        "a.toml, line 6: algorithm.hypergradient.terms:",
        "give a whole number, at least 1",
    ),
    of_file(
        "a series of no scale",
        SERIES + 'name = "NeumannSeries"\nterms = 3\nscale = -0.1',
        "not -0.1.",
        "a.toml, line 7: algorithm.hypergradient.scale:",
        "give a number, above 0",
    ),
)
