//! The engine: a session with limits, the tables of the files, and one statement.
//!
//! A statement can only read the tables that the command line names. It can write nothing, read no
//! other file, and use no network.

use std::sync::Arc;

use datafusion::common::TableReference;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::context::{SQLOptions, SessionConfig, SessionContext, SessionState};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast;
use strait_program::Error;

use crate::capture::{self, CaptureTable, SharedDefects};
use crate::error::of_query;
use crate::source::Sources;
use crate::stored;

/// Maximum bytes of a statement. The engine needs stack for each level of an expression.
const SQL_BYTES_MAX: usize = 16 << 10;
/// Schema with the names of tables and columns.
const INFORMATION: &str = "information_schema";

/// Limits of a query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Memory of the engine's operators in bytes.
    pub(crate) memory_bytes: u64,
    /// Bytes of temporary files, for sorting and grouping that need more memory.
    pub(crate) spill_bytes: u64,
}

/// Engine with the tables of the files.
pub(crate) struct Engine {
    context: SessionContext,
    sources: Sources,
    defects: SharedDefects,
}

impl Engine {
    /// Creates an engine. The tables are opened when a statement needs them.
    ///
    /// # Errors
    /// The limits are not valid.
    pub(crate) fn new(sources: Sources, limits: Limits) -> Result<Self, Error> {
        let mode =
            if limits.spill_bytes == 0 { DiskManagerMode::Disabled } else { DiskManagerMode::OsTmpDirectory };
        let disk =
            DiskManagerBuilder::default().with_mode(mode).with_max_temp_directory_size(limits.spill_bytes);
        let memory_bytes = usize::try_from(limits.memory_bytes).unwrap_or(usize::MAX);
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(FairSpillPool::new(memory_bytes)))
            .with_disk_manager_builder(disk)
            .build_arc()
            .map_err(|error| of_query(&error))?;
        let mut config = SessionConfig::new().with_information_schema(true);
        // Flows have the names of IPFIX, with capitals, which SQL would change to small letters.
        config.options_mut().sql_parser.enable_ident_normalization = false;
        let context = SessionContext::new_with_config_rt(config, runtime);
        Ok(Self { context, sources, defects: SharedDefects::default() })
    }

    /// Returns the defects of files so far.
    pub(crate) fn defects(&self) -> &SharedDefects {
        &self.defects
    }

    /// Returns the capture files, if these are the files of the query.
    pub(crate) fn captures(&self) -> Option<&[String]> {
        match &self.sources {
            Sources::Captures(files) => Some(files),
            Sources::None | Sources::Tables(_) => None,
        }
    }

    /// Starts a statement, and returns its rows.
    ///
    /// # Errors
    /// The statement is not valid, or is no query; it names an unknown table; a file is damaged.
    pub(crate) async fn query(&self, sql: &str) -> Result<SendableRecordBatchStream, Error> {
        if sql.len() > SQL_BYTES_MAX {
            return Err(Error::usage(format!("the SQL is too long: give at most {SQL_BYTES_MAX} bytes")));
        }
        let state = self.context.state();
        let dialect = state.config().options().sql_parser.dialect;
        let statement = state.sql_to_statement(sql, &dialect).map_err(|error| of_query(&error))?;
        check(&statement)?;
        self.register(&state, &statement).await?;
        let plan = self.context.state().statement_to_plan(statement).await;
        let plan = plan.map_err(|error| of_query(&error))?;
        let options =
            SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        options.verify_plan(&plan).map_err(|_| only_queries())?;
        let frame = self.context.execute_logical_plan(plan).await.map_err(|error| of_query(&error))?;
        frame.execute_stream().await.map_err(|error| of_query(&error))
    }

    /// Registers the tables that a statement names.
    async fn register(&self, state: &SessionState, statement: &Statement) -> Result<(), Error> {
        let names = state.resolve_table_references(statement).map_err(|error| of_query(&error))?;
        let is_information = |name: &TableReference| name.schema() == Some(INFORMATION);
        // SHOW TABLES names none, and lists all.
        let wants_all = !is_query(statement) || names.iter().any(is_information);
        let tables = self.sources.names();
        for name in names.iter().filter(|name| !is_information(name)) {
            let is_function = state.table_functions().contains_key(name.table());
            if !tables.contains(&name.table()) && !is_function {
                return Err(unknown(name.table(), &self.sources));
            }
        }
        let is_named = |table: &str| wants_all || names.iter().any(|name| name.table() == table);
        for table in tables.into_iter().filter(|table| is_named(table)) {
            self.open(state, table).await?;
        }
        Ok(())
    }

    async fn open(&self, state: &SessionState, name: &'static str) -> Result<(), Error> {
        let failed = |error| of_query(&error);
        let provider = match &self.sources {
            Sources::None => return Ok(()),
            Sources::Tables(tables) => {
                let parts = tables.get(name).map(Vec::as_slice).unwrap_or_default();
                stored::table(state, name, parts).await?
            }
            Sources::Captures(files) => {
                let Some(kind) = capture::TABLES.into_iter().find(|kind| kind.name() == name) else {
                    return Ok(());
                };
                let files: Arc<[String]> = files.as_slice().into();
                Arc::new(CaptureTable::new(kind, files, self.defects.clone()).map_err(failed)?)
            }
        };
        // A bare name would be normalized.
        let reference = TableReference::bare(name);
        self.context.register_table(reference, provider).map(drop).map_err(failed)
    }
}

/// Refuses statements that are no queries, before the engine opens a file for them.
fn check(statement: &Statement) -> Result<(), Error> {
    match statement {
        Statement::Statement(statement) => match statement.as_ref() {
            ast::Statement::Query(_)
            | ast::Statement::ExplainTable { .. }
            | ast::Statement::ShowTables { .. }
            | ast::Statement::ShowColumns { .. } => Ok(()),
            _ => Err(only_queries()),
        },
        Statement::Explain(explain) => check(&explain.statement),
        _ => Err(only_queries()),
    }
}

fn is_query(statement: &Statement) -> bool {
    match statement {
        Statement::Statement(statement) => {
            matches!(statement.as_ref(), ast::Statement::Query(_) | ast::Statement::ExplainTable { .. })
        }
        Statement::Explain(_) => true,
        _ => false,
    }
}

fn only_queries() -> Error {
    Error::usage("only queries are permitted: select, with, values, show tables, describe, explain")
}

fn unknown(table: &str, sources: &Sources) -> Error {
    let names = sources.names();
    if names.is_empty() {
        return Error::usage(format!("{table}: no such table: give capture files, or a directory of tables"));
    }
    Error::usage(format!("{table}: no such table; there are {}", names.join(", ")))
}
