_fedbilevel_types() {
  # Bash breaks words at colons, so that algorithm:Fed is three words.
  local table="" typed="$1" name
  if [[ "$typed" == : ]]; then
    table="${COMP_WORDS[COMP_CWORD-1]}:" typed=""
  elif [[ "${COMP_WORDS[COMP_CWORD-1]}" == : ]]; then
    table="${COMP_WORDS[COMP_CWORD-2]}:"
  fi
  for name in NAMES; do
    if [[ "$name" == "$table$typed"* ]]; then
      printf '%s\n' "${name#"$table"}"
    fi
  done
}
