"""The laboratory: studies, where their runs are kept, and what may be concluded from them."""
