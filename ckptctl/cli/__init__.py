"""The command line: argv in, text or JSON out, exit code. The only room that draws, and the only catch-all."""
