"""Servers under many clients."""
