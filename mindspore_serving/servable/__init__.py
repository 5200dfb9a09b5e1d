"""Declarations of servables from user code: register functions, method graphs, directories."""
