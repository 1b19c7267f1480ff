"""Test vectors of the protocol, for clients in any language; docs/protocol.md says how to read them."""
