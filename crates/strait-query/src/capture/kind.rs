//! Tables that a capture file has.

use strait_table::messages::Application;
use strait_table::schema::{self, Table};

/// Table of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Packets,
    Flows,
    Messages(Application),
}

/// Every table of a capture file.
pub(crate) const TABLES: [Kind; 5] = [
    Kind::Packets,
    Kind::Flows,
    Kind::Messages(Application::Dns),
    Kind::Messages(Application::Tls),
    Kind::Messages(Application::Http),
];

impl Kind {
    fn table(self) -> &'static Table {
        match self {
            Self::Packets => &schema::PACKETS,
            Self::Flows => &schema::FLOWS,
            Self::Messages(application) => application.table(),
        }
    }

    /// Returns the name of the table.
    pub(crate) fn name(self) -> &'static str {
        self.table().name
    }
}
