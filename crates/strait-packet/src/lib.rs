//! Header views and builders, flow keys, one-line summaries.
