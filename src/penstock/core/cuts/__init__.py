"""Stream cuts: their order, the checks of a caller's cut, and which segments a reader may start. Pure."""
