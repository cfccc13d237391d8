"""A prompt and five actions, for tests of streams."""

PROMPT = "The user wants to read a file. Action:"
ACTIONS = ["READ", "READ_FILE", "SEND_EMAIL", "SEND_MESSAGE", "SET_ALARM"]
