"""One verb, one function, one result type. Actions compose the rooms below; they never print and never exit."""
