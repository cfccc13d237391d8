"""OpenAI's completions: free text, one of a set, a record by a schema, a call of a tool."""
