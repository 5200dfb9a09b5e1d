"""When a batch leaves, and how instances become one array and back."""
