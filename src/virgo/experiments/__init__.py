"""The paper's apparatus: datasets, networks, tasks, sweeps, tables and appendix A."""
