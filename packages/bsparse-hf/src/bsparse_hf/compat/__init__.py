"""Old names on top of bsparse_hf."""
