//! Counters, accounts, histograms and their names.
