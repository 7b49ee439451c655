"""The OpenAPI document: how it is generated, its examples, and its error responses."""
