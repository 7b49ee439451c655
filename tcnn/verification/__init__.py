"""The independent witness: is the converted model the same function?"""
