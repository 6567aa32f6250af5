function _fedbilevel_types
  printf '%s\n' NAMES
end
