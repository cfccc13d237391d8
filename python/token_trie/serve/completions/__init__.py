"""OpenAI's completions: free text, a member of a set, a record of a schema, a call of a tool."""
