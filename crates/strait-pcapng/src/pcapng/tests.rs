//! The pcapng encoder and decoder against each other and against blocks written by hand.
