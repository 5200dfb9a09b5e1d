"""Plain data without I/O: values, graphs of methods, declarations, messages, options."""
