"""Plug-ins: algorithms and problems of other packages."""
