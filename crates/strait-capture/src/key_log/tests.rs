//! Key logs: formats of lines, growth, truncation, replacement, limits.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;

use super::*;

fn line(label: &str, digits: usize) -> String {
    format!("{label} {} {}\n", "0a".repeat(32), "Bc".repeat(digits / 2))
}

fn open_log(directory: &tempfile::TempDir, text: impl AsRef<[u8]>) -> (PathBuf, Result<KeyLog, KeyLogError>) {
    let path = directory.path().join("keys.log");
    fs::write(&path, text).expect("a file");
    let log = KeyLog::open(&path);
    (path, log)
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new().append(true).open(path).expect("a file");
    file.write_all(text.as_bytes()).expect("room");
}

/// Returns the block of these lines.
fn block(lines: &str) -> Option<ExtraBlock> {
    let secrets = Secrets { kind: Secrets::TLS_KEY_LOG, data: lines.as_bytes() };
    (!lines.is_empty()).then(|| ExtraBlock::secrets(&secrets).expect("a short block"))
}

#[test]
fn lines_of_every_label_are_taken_and_comments_left_out() {
    let text = [
        "# a comment\r\n\n".to_owned(),
        line("CLIENT_RANDOM", 96),
        format!("RSA {} {}\n", "0123456789abcdef", "f".repeat(96)),
        line("CLIENT_TRAFFIC_SECRET_0", 64).replace('\n', "\r\n"),
        line("EXPORTER_SECRET", 96),
        line("ECH_CONFIG", 600),
    ];
    let directory = directory();
    let mut log = open_log(&directory, text.concat()).1.expect("a key log");
    assert_eq!(log.secrets(), 5);
    assert_eq!(log.take_block(usize::MAX), block(&text[1..].concat().replace('\r', "")));
    assert_eq!((log.take_block(usize::MAX), log.take_event()), (None, None));
}

#[test]
fn malformed_line_at_the_start_is_refused_by_its_number() {
    let good = line("CLIENT_RANDOM", 96);
    let directory = directory();
    for bad in [
        "CLIENT_RANDOM".to_owned(),
        line("CLIENT_RANDOM", 94),
        line("client_random", 96),
        line("SECRET", 33).replace("BcBc", "BcB"),
        line("SECRET", 30),
        line("RSA", 96),
        line("CLIENT_RANDOM", 96).replace("0a0a", "0a0g"),
        line("CLIENT_RANDOM", 96).replace('\n', " \n"),
        line("CLIENT_RANDOM", 96).replace(' ', "  "),
        line(&"L".repeat(65), 64),
        line("SECRET", 5000),
        "\0\n".to_owned(),
    ] {
        let (path, log) = open_log(&directory, format!("{good}\n{}\n{good}", bad.trim_end_matches('\n')));
        let error = log.expect_err(&bad).to_string();
        assert!(error.starts_with(&format!("line 3 of the key log {} is not", path.display())), "{error}");
        assert!(!error.contains("0a0"), "no content in {error}");
    }
}

#[test]
fn added_lines_are_read_once_they_are_whole() {
    let (first, second, third) =
        (line("CLIENT_RANDOM", 96), line("CLIENT_TRAFFIC_SECRET_0", 96), line("SERVER_TRAFFIC_SECRET_0", 96));
    let directory = directory();
    // 64 of 96 digits would be a secret, too.
    let (start, end) = second.split_at(second.len() - 33);
    let (path, log) = open_log(&directory, first.clone() + start);
    let mut log = log.expect("a key log");
    assert_eq!(log.take_block(usize::MAX), block(&first));
    log.poll();
    assert_eq!(log.take_block(usize::MAX), None);
    append(&path, end);
    append(&path, "not a secret\n");
    append(&path, third.trim_end());
    log.poll();
    assert_eq!(log.take_block(usize::MAX), block(&second));
    log.complete().expect("a line");
    assert_eq!((log.take_block(usize::MAX), log.malformed(), log.secrets()), (block(&third), 1, 3));
    append(&path, "\nhalf of");
    log.poll();
    assert!(log.complete().is_err());
    assert_eq!(log.malformed(), 2);
}

#[test]
fn last_line_without_an_end_is_taken_only_if_it_is_whole() {
    let directory = directory();
    for (rest, is_taken, event) in [
        (line("CLIENT_RANDOM", 96), true, None),
        (line("SERVER_TRAFFIC_SECRET_0", 96), true, None),
        // The first 64 of 96 digits.
        (line("SERVER_TRAFFIC_SECRET_0", 64), false, Some(KeyLogEvent::Unfinished)),
        (line("ECH_CONFIG", 96), false, Some(KeyLogEvent::Unfinished)),
        ("SERVER_TRAFFIC".to_owned(), false, Some(KeyLogEvent::Unfinished)),
        ("S".repeat(KEY_LOG_LINE_BYTES_MAX + 1), false, Some(KeyLogEvent::Unfinished)),
        ("# a comm".to_owned(), false, None),
        (String::new(), false, None),
    ] {
        let rest = rest.trim_end();
        let (path, log) = open_log(&directory, line("FIRST", 64) + &rest[..rest.len() / 2]);
        let mut log = log.expect("a key log");
        assert_eq!(log.take_block(usize::MAX), block(&line("FIRST", 64)));
        append(&path, &rest[rest.len() / 2..]);
        log.end();
        let expected = if is_taken { block(&format!("{rest}\n")) } else { None };
        assert_eq!((log.take_block(usize::MAX), log.take_event()), (expected, event), "{rest}");
        assert_eq!((log.secrets(), log.malformed()), (1 + u64::from(is_taken), 0), "{rest}");
    }
}

#[test]
fn line_that_the_limit_cuts_is_not_taken() {
    let directory = directory();
    let (path, log) = open_log(&directory, "\n");
    let mut log = log.expect("a key log");
    // The last read ends after 96 of 120 digits.
    let start_len = line("SECRET", 96).trim_end().len();
    let comments_len = KEY_LOG_BYTES_MAX as usize - start_len;
    let comment = format!("{}\n", "#".repeat(63));
    append(&path, &comment.repeat(comments_len / 64));
    append(&path, &"\n".repeat(comments_len % 64));
    append(&path, &line("SECRET", 120));
    log.end();
    assert_eq!((log.secrets(), log.take_event()), (0, Some(KeyLogEvent::Full)));
    assert_eq!(log.take_event(), None);
}

#[test]
fn blocks_are_cut_between_lines() {
    let lines = [line("CLIENT_RANDOM", 96), line("A", 64), line("B", 64), line("C", 2000)];
    let directory = directory();
    let mut log = open_log(&directory, lines.concat()).1.expect("a key log");
    let two = lines[1].len() * 2;
    let blocks: Vec<_> = std::iter::from_fn(|| log.take_block(two)).collect();
    let expected = [lines[0].clone(), lines[1..3].concat(), lines[3].clone()];
    assert_eq!(blocks, expected.map(|lines| block(&lines).expect("lines")));
}

#[test]
fn truncated_log_is_read_from_its_start_and_a_replaced_one_to_its_end() {
    let directory = directory();
    let (path, log) = open_log(&directory, line("CLIENT_RANDOM", 96).repeat(3));
    let mut log = log.expect("a key log");
    log.take_block(usize::MAX).expect("lines");
    log.check_name();
    assert_eq!(log.take_event(), None);
    fs::write(&path, line("AFTER", 64)).expect("a file");
    log.poll();
    assert_eq!(
        (log.take_block(usize::MAX), log.take_event()),
        (block(&line("AFTER", 64)), Some(KeyLogEvent::Truncated))
    );
    let old = directory.path().join("old.log");
    fs::rename(&path, &old).expect("a rename");
    fs::write(&path, line("OTHER", 64)).expect("a file");
    append(&old, &line("OWN", 64));
    log.check_name();
    log.poll();
    assert_eq!(
        (log.take_block(usize::MAX), log.take_event()),
        (block(&line("OWN", 64)), Some(KeyLogEvent::Replaced))
    );
    fs::remove_file(&path).expect("a file");
    log.check_name();
    assert_eq!(log.take_event(), None, "it is noted once");
}

#[test]
fn log_over_its_limits_is_refused_at_the_start_and_cut_later() {
    let directory = directory();
    let many = line("CLIENT_RANDOM", 96).repeat(KEY_LOG_LINES_MAX as usize);
    assert!(many.len() as u64 > KEY_LOG_BYTES_MAX);
    assert!(matches!(open_log(&directory, &many).1, Err(KeyLogError::TooLong { .. })));
    let comments = vec![b'#'; KEY_LOG_BYTES_MAX as usize + 1];
    assert!(open_log(&directory, comments).1.is_err());
    let short = format!("S {} {}\n", "0".repeat(64), "0".repeat(32));
    let (path, log) = open_log(&directory, short.repeat(KEY_LOG_LINES_MAX as usize - 1));
    let mut log = log.expect("a key log");
    append(&path, &short.repeat(5));
    log.poll();
    log.poll();
    assert_eq!((log.secrets(), log.take_event()), (KEY_LOG_LINES_MAX, Some(KeyLogEvent::Full)));
    assert_eq!(log.take_event(), None);
}

#[test]
fn links_and_files_of_other_kinds_are_refused() {
    let directory = directory();
    let (path, _) = open_log(&directory, line("CLIENT_RANDOM", 96));
    let link = directory.path().join("link");
    symlink(&path, &link).expect("a link");
    let fifo = directory.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_bits_retain(0o600),
        0,
    )
    .expect("a FIFO");
    let missing = directory.path().join("missing");
    for (path, words) in [
        (link.as_path(), "is a symbolic link: give a regular file"),
        (&fifo, "is a FIFO or a device"),
        (Path::new("/dev/null"), "is a FIFO or a device"),
        (directory.path(), "is a directory"),
        (&missing, "No such file or directory (os error 2); create it first"),
    ] {
        let error = KeyLog::open(path).expect_err("a refusal").to_string();
        assert!(error.contains(words), "{error}");
    }
}
