"""Many prompts at once: who answers them, and what that takes."""
