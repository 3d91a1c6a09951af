"""A folder to import `deep_gemm` from, where tests want one that compiles."""
