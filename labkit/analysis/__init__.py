"""Analysis of stored campaigns: statistics, claims, results and the pages that show them."""
