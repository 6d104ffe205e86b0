"""The command `tdn-spark`: arguments in, results on stdout, an exit code per kind of error."""
