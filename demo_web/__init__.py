"""The browser demo, served at `/`, and the player in it, which other pages can use (docs/embedding.md).

Plain JavaScript modules without a build step. `session.js` and what it imports know no browser; `player.js` is the way
in.
"""
