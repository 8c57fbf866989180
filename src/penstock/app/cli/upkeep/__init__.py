"""Commands for those who run a server: start, doctor, scrub, rebuild."""
