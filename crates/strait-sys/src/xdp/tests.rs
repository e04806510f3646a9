//! Receiver and transmitter against a kernel that the test plays, on the rings' real layout; the ABI's layout.
