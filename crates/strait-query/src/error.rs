//! Errors of the engine as one line for the user.

use std::path::Path;

use datafusion::common::{Column, SchemaError};
use datafusion::error::DataFusionError;
use strait_program::Error;

/// Maximum bytes of a message: one about an unknown column lists the columns.
const MESSAGE_BYTES_MAX: usize = 2000;

/// Returns the error of a query.
pub(crate) fn of_query(error: &DataFusionError) -> Error {
    let text = one_line(&message(error));
    match root(error) {
        DataFusionError::SQL(..)
        | DataFusionError::Plan(_)
        | DataFusionError::SchemaError(..)
        | DataFusionError::NotImplemented(_)
        | DataFusionError::Configuration(_) => Error::usage(text),
        DataFusionError::ResourcesExhausted(_) => {
            Error::failed(format!("the query needs more memory: give a larger --memory ({text})"))
        }
        _ => Error::failed(text),
    }
}

/// Returns the error of a failed operation on a file.
pub(crate) fn of_file(operation: &str, path: &Path, cause: impl std::fmt::Display) -> Error {
    Error::failed(format!("{operation} {}: {}", path.display(), one_line(&cause.to_string())))
}

/// Returns the first cause, without the contexts that the engine adds.
fn root(error: &DataFusionError) -> &DataFusionError {
    match error {
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => root(inner),
        DataFusionError::Shared(inner) => root(inner),
        DataFusionError::Collection(errors) => errors.first().map_or(error, root),
        error => error,
    }
}

fn message(error: &DataFusionError) -> String {
    match root(error) {
        DataFusionError::SQL(error, _) => error.to_string().replacen("sql parser error: ", "SQL: ", 1),
        DataFusionError::Plan(text)
        | DataFusionError::Execution(text)
        | DataFusionError::NotImplemented(text)
        | DataFusionError::ResourcesExhausted(text) => text.clone(),
        DataFusionError::SchemaError(error, _) => of_schema(error),
        DataFusionError::ParquetError(error) => format!("a Parquet file is damaged: {error}"),
        DataFusionError::ArrowError(error, _) => error.to_string(),
        DataFusionError::External(error) => error.to_string(),
        error => error.strip_backtrace(),
    }
}

fn of_schema(error: &SchemaError) -> String {
    let SchemaError::FieldNotFound { field, valid_fields } = error else { return error.to_string() };
    let names: Vec<&str> = valid_fields.iter().map(Column::name).collect();
    let wanted = field.name();
    let same = names.iter().find(|name| name.eq_ignore_ascii_case(wanted));
    match same {
        Some(name) => format!("{wanted}: no such column; its name is {name}"),
        None if names.is_empty() => format!("{wanted}: no such column"),
        None => format!("{wanted}: no such column; there are {}", names.join(", ")),
    }
}

/// Joins the lines of a text, and cuts it.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for part in text.lines().map(str::trim).filter(|part| !part.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(part);
    }
    line.truncate(line.floor_char_boundary(MESSAGE_BYTES_MAX));
    line
}
