"""What the server reaches outside itself: Dify's services now, sandboxes behind the same doors."""
