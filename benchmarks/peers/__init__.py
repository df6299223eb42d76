"""The same work in another library, or written plainly, to compare with ours."""
