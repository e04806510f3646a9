//! `strait top`: the stream of JSON objects, and the picture and its keys.

use std::io::{PipeWriter, Write as _};
use std::time::Duration;

use lab::{End, Launch, Process, Wire, program_or_skip, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use strait_os::interface::Interface;

use crate::rig::{LIMIT, PATHS, STRAIT, await_open, count, failure, numbered, run, send, status, strait};

fn objects(text: &str) -> Vec<Value> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Returns the packets of all intervals.
fn packets(objects: &[Value]) -> u64 {
    objects.iter().map(|object| count(object, "packets")).sum()
}

#[test]
fn objects_count_each_packet_once() {
    const FRAMES: u64 = 500;
    let Some(wire) = Wire::builder().or_skip() else { return };
    let top = strait(wire.right(), &["top", "-i", "right", "--json", "--interval", "0.2"]).spawn().unwrap();
    top.wait_for_stdout("}\n", LIMIT).unwrap();
    send(&wire, &numbered(FRAMES));
    assert!(wait_until(LIMIT, || packets(&objects(&top.stdout())) == FRAMES), "{}", top.stdout());
    let ended = top.interrupt(LIMIT).unwrap().success();
    assert!(ended.stderr.contains("right: path v3"), "{}", ended.stderr);
    let objects = objects(&ended.text());
    assert_eq!((packets(&objects), count(objects.last().unwrap(), "delivered")), (FRAMES, FRAMES));
    let rate = |object: &Value| object["packets_per_second"].as_f64().unwrap();
    let counted: f64 = objects.iter().map(|object| rate(object) * object["seconds"].as_f64().unwrap()).sum();
    assert_eq!(counted.round() as u64, FRAMES);
    let busiest = objects.iter().find(|object| !object["flows"].as_array().unwrap().is_empty()).unwrap();
    assert_eq!(busiest["protocols"][0]["protocol"], "tcp");
    assert!(busiest["delay"]["p50_ns"].as_u64().unwrap() > 0);
    assert!(busiest["flows"][0]["flow"].as_str().unwrap().contains(" > "));
}

#[test]
fn last_object_covers_the_time_since_the_previous_one() {
    const FRAMES: u64 = 40;
    let Some(wire) = Wire::builder().or_skip() else { return };
    let top = strait(wire.right(), &["top", "-i", "right", "--json", "--interval", "600"]).spawn().unwrap();
    assert!(await_open(top.id()), "{}", top.stderr());
    send(&wire, &numbered(FRAMES));
    let ended = top.interrupt(LIMIT).unwrap().success();
    let objects = objects(&ended.text());
    assert_eq!(objects.len(), 1, "{}", ended.text());
    assert_eq!((packets(&objects), count(&objects[0], "delivered")), (FRAMES, FRAMES));
}

#[test]
fn closed_reader_of_objects_is_no_failure() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let command = format!("{{ {STRAIT} top -i right --json --interval 0.1; echo code $? >&2; }} | head -n 1");
    let ended = wire.right().command("sh").args(["-c", &command]).run(LIMIT).unwrap();
    assert_eq!(objects(&ended.text()).len(), 1);
    assert!(ended.stderr.contains("code 0") && !ended.stderr.contains("strait: "), "{}", ended.stderr);
}

#[test]
fn flows_of_all_interfaces_are_counted() {
    const FRAMES: u64 = 40;
    let Some(wire) = Wire::builder().or_skip() else { return };
    let top = strait(wire.right(), &["top", "-i", "any", "--json", "--interval", "600"]).spawn().unwrap();
    assert!(await_open(top.id()), "{}", top.stderr());
    send(&wire, &numbered(FRAMES));
    let objects = objects(&top.interrupt(LIMIT).unwrap().success().text());
    let flows = objects[0]["flows"].as_array().unwrap();
    assert_eq!(flows.iter().map(|flow| count(flow, "packets")).sum::<u64>(), FRAMES, "{flows:?}");
    assert_eq!(objects[0]["protocols"][0]["protocol"], "tcp");
}

#[test]
fn each_object_covers_a_whole_interval_after_a_stop() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let top = strait(wire.right(), &["top", "-i", "right", "--json", "--interval", "0.1"]).spawn().unwrap();
    top.wait_for_stdout("}\n", LIMIT).unwrap();
    top.signal(Signal::STOP);
    let is_stopped = || status(&top.id().to_string(), "State").is_some_and(|state| state.starts_with('T'));
    assert!(wait_until(LIMIT, is_stopped));
    let before = objects(&top.stdout()).len();
    // The passing of time itself is tested: no event could be waited for.
    std::thread::sleep(Duration::from_millis(500));
    top.signal(Signal::CONT);
    assert!(wait_until(LIMIT, || objects(&top.stdout()).len() > before + 4), "{}", top.stdout());
    let mut objects = objects(&top.interrupt(LIMIT).unwrap().success().text());
    objects.pop();
    let seconds: Vec<f64> = objects.iter().map(|object| object["seconds"].as_f64().unwrap()).collect();
    assert!(seconds.iter().all(|seconds| *seconds >= 0.1), "{seconds:?}");
}

#[test]
fn flapping_link_is_reported_and_the_capture_goes_on() {
    const FRAMES: u64 = 50;
    for path in PATHS {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let arguments = ["top", "-i", "right", "-p", path, "--json", "--interval", "0.1"];
        let top = strait(wire.right(), &arguments).spawn().unwrap();
        let have_arrived = |sum| wait_until(LIMIT, || packets(&objects(&top.stdout())) == sum);
        let is = |link| move |object: &Value| object["link"] == link;
        let last_is = |link| wait_until(LIMIT, || objects(&top.stdout()).last().is_some_and(is(link)));
        top.wait_for_stdout("}\n", LIMIT).unwrap();
        send(&wire, &numbered(FRAMES));
        assert!(have_arrived(FRAMES), "{path}: {}", top.stdout());
        wire.right().set_up(false);
        assert!(last_is("down"), "{path}: {}", top.stderr());
        wire.right().set_up(true);
        assert!(last_is("up"), "{path}: {}", top.stderr());
        assert!(wait_until(LIMIT, || [wire.left(), wire.right()]
            .map(End::interface)
            .iter()
            .all(Interface::is_running)));
        send(&wire, &numbered(FRAMES));
        assert!(have_arrived(2 * FRAMES), "{path}: {}", top.stdout());
        wire.right().set_up(false);
        assert!(last_is("down"), "{path}: {}", top.stderr());
        let _ = top.interrupt(LIMIT).unwrap().success();
    }
}

#[test]
fn removed_interface_ends_top_after_a_last_object() {
    const FRAMES: u64 = 40;
    for path in PATHS {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let arguments = ["top", "-i", "right", "-p", path, "--json", "--interval", "600"];
        let top = strait(wire.right(), &arguments).spawn().unwrap();
        assert!(await_open(top.id()), "{}", top.stderr());
        send(&wire, &numbered(FRAMES));
        wire.right().delete();
        let ended = top.wait(LIMIT).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{path}: {}", ended.stderr);
        assert!(ended.stderr.contains("the interface was removed"), "{path}: {}", ended.stderr);
        assert_eq!(packets(&objects(&ended.text())), FRAMES, "{path}: {}", ended.text());
    }
}

/// `strait top` in a terminal of 80 by 24, between two lines with the terminal's settings.
struct Picture {
    script: Process,
    keyboard: PipeWriter,
}

impl Picture {
    /// Starts it with `options`, and waits for the first picture.
    fn start(wire: &Wire, options: &str) -> Self {
        let top = format!("{STRAIT} top -i right {options}");
        let command = format!("stty rows 24 cols 80; stty -g; {top}; code=$?; stty -g; exit $code");
        let (typed, keyboard) = std::io::pipe().unwrap();
        let script = wire.right().command("script").args(["-qec", &command, "/dev/null"]).stdin(typed);
        let script = script.spawn().unwrap();
        script.wait_for_stdout("quit", LIMIT).unwrap();
        Self { script, keyboard }
    }

    /// Types `keys` and waits until `word` is drawn again. It is a single word, as blanks may be
    /// drawn by cursor moves.
    fn type_until(&mut self, keys: &str, word: &str) {
        let drawn = || self.script.stdout().matches(word).count();
        let before = drawn();
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        assert!(wait_until(LIMIT, || drawn() > before), "{keys:?} draws no {word}: {}", self.script.stdout());
    }

    /// Quits, and returns all output.
    fn quit(mut self) -> String {
        self.keyboard.write_all(b"q").unwrap();
        self.script.wait(LIMIT).unwrap().success().text()
    }
}

/// Returns the lines of `stty -g`: the settings of tcgetattr(3) in hexadecimal.
fn settings(text: &str) -> Vec<&str> {
    let is_setting = |line: &&str| {
        line.matches(':').count() > 4 && line.chars().all(|c| c == ':' || c.is_ascii_hexdigit())
    };
    text.lines().map(str::trim_end).filter(is_setting).collect()
}

#[test]
fn no_thread_keeps_a_capability() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let top = strait(wire.right(), &["top", "-i", "right", "--json", "--interval", "0.1"]).spawn().unwrap();
    top.wait_for_stdout("}\n", LIMIT).unwrap();
    let threads = std::fs::read_dir(format!("/proc/{}/task", top.id())).unwrap();
    let threads: Vec<String> =
        threads.map(|thread| thread.unwrap().file_name().into_string().unwrap()).collect();
    assert!(threads.len() > 1, "a reading and a drawing thread: {threads:?}");
    for thread in threads {
        let held = status(&format!("{}/task/{thread}", top.id()), "CapEff").unwrap();
        assert_eq!(u64::from_str_radix(&held, 16), Ok(0), "{thread}");
    }
    let _ = top.interrupt(LIMIT).unwrap().success();
}

#[test]
fn filter_that_needs_a_privilege_is_refused_in_one_line() {
    let Some(wire) = Wire::builder().or_skip().filter(|_| program_or_skip("script")) else { return };
    let mut picture = Picture::start(&wire, "--path xdp-generic");
    picture.type_until("/udp\r", "privilege");
    let text = picture.quit();
    assert!(text.contains("v3") && !text.contains("filter: udp  "), "{text}");
}

#[test]
fn picture_handles_keys_and_restores_the_terminal() {
    let Some(wire) = Wire::builder().or_skip().filter(|_| program_or_skip("script")) else { return };
    let mut picture = Picture::start(&wire, "--interval 0.1");
    send(&wire, &numbered(10));
    let shown = [("s", "packets/s v"), ("p", "PAUSED"), ("/nonsense filter\r", "syntax")];
    for (keys, word) in shown.into_iter().chain([("/udp\r", "quit"), ("?", "pcap-filter"), ("?", "longer")]) {
        picture.type_until(keys, word);
    }
    let text = picture.quit();
    for words in ["strait top", "udp", "right: path v3"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let (entered, left) = ("\x1b[?1049h", "\x1b[?1049l");
    assert!(text.contains(entered) && text.find(left) > text.find(entered));
    let settings = settings(&text);
    assert!(settings.len() == 2 && settings[0] == settings[1], "{settings:?}: {text}");
}

#[test]
fn hang_up_of_the_terminal_ends_top() {
    let Some(wire) = Wire::builder().or_skip().filter(|_| program_or_skip("script")) else { return };
    // If HUP is ignored, only the end of the input shows the hang-up. Otherwise the signal may come
    // first.
    for trap in ["trap '' HUP;", ""] {
        let command = format!("{trap} stty rows 24 cols 80; echo \"pid <$$>\"; exec {STRAIT} top -i right");
        let (typed, _keyboard) = std::io::pipe().unwrap();
        let script = wire.right().command("script").args(["-qec", &command, "/dev/null"]).stdin(typed);
        let script = script.spawn().unwrap();
        script.wait_for_stdout("quit", LIMIT).unwrap();
        let text = script.stdout();
        let (_, text) = text.split_once("pid <").unwrap();
        let (id, _) = text.split_once('>').unwrap();
        script.signal(Signal::KILL);
        // A zombie has ended: its new parent may be slow to wait for it.
        let has_ended = || status(id, "State").is_none_or(|state| state.starts_with('Z'));
        let ended = wait_until(LIMIT, has_ended);
        if let (false, Some(id)) = (ended, id.parse().ok().and_then(rustix::process::Pid::from_raw)) {
            let _ = rustix::process::kill_process(id, Signal::KILL);
        }
        assert!(ended, "{trap}");
    }
}

#[test]
fn output_that_is_no_terminal_needs_json() {
    let (code, message) = failure(&run(&["top", "-i", "lo"]));
    assert!(code == 2 && message.contains("--json"), "{code} {message}");
    let gone = Launch::new(STRAIT).args(["top", "-i", "no-such-if0", "--json"]).run(LIMIT).unwrap();
    assert_eq!(gone.status.code(), Some(2), "{}", gone.stderr);
}
