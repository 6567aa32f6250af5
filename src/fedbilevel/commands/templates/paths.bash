# shtab passes a typed word unquoted to compgen, so that a name with a space cannot be
# completed. Names are only printed here, and never evaluated.
_fedbilevel_typed() {
  local typed="$1"
  case "$typed" in
    \'*|\"*) typed="${typed:1}" ;;
    *) typed="${typed//\\/}" ;;
  esac
  printf '%s' "$typed"
}
_fedbilevel_files() {
  compgen -f -- "$(_fedbilevel_typed "$1")"
}
_fedbilevel_dirs() {
  compgen -d -- "$(_fedbilevel_typed "$1")"
}
_fedbilevel_toml_files() {
  compgen -f -X '!*.toml' -- "$(_fedbilevel_typed "$1")"
  _fedbilevel_dirs "$1"
}
# Run directories and their parents; all directories if there are none.
_fedbilevel_run_dirs() {
  local name file runs=()
  while IFS= read -r name; do
    for file in "$name"/experiment.toml "$name"/*/experiment.toml; do
      [[ -e "$file" ]] && runs+=("$name") && break
    done
  done < <(_fedbilevel_dirs "$1")
  if (( ${#runs[@]} )); then
    printf '%s\n' "${runs[@]}"
  else
    _fedbilevel_dirs "$1"
  fi
}
