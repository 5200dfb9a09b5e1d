"""How user code becomes a declaration: register functions, method graphs, directories."""
