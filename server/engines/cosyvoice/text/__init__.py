"""Text: from the server's words to the token ids that the language model reads."""
