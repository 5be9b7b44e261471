"""The papers' own tables and claims: reference data, printed beside ours."""
