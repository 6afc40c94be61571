"""The layers that users build with."""
