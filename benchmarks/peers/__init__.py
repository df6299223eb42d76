"""What we compare with: the same work in another library, or written plainly."""
