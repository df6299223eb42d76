"""What we are compared with: the same work in another library, or written plainly."""
