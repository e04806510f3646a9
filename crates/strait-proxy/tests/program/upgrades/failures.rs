//! Upgrades that fail: the running process goes on as before, with its store.

use std::fs;

use lab::{Launch, root_or_skip, wait_until};
use rustix::process::Signal;

use super::rig::{Service, await_end, has_ended, is_hit, signal, toml};
use super::{await_hits, objects};
use crate::body::Body;
use crate::client::{await_hit, get};
use crate::origin::Origin;
use crate::rig::LIMIT;

/// Fails an upgrade; checks the line about it, and that the proxy serves, stores and is unharmed.
fn assert_unharmed(service: &Service, origin: &Origin, expected: &str) {
    let (last, failed) = (service.last_started(), service.metric("strait_proxy_failed_upgrades_total"));
    let written = service.process.stderr().len();
    signal(service.process.id(), Signal::USR2);
    service.wait_for("not upgraded, this process goes on: ", failed as usize + 1);
    let text = service.process.stderr()[written..].to_owned();
    assert!(text.contains(expected) && text.matches("not upgraded").count() == 1, "{text}");
    assert_eq!(service.metric("strait_proxy_failed_upgrades_total"), failed + 1);
    if service.last_started() != last {
        await_end(service.last_started());
    }
    assert_kept(service, origin);
    await_hit(service.address, &Body::new(1000 + failed, 90_000));
    assert!(!has_ended(service.process.id()));
}

/// Checks that the cache has the objects of the tests, without a request to the origin. The store
/// is loaded while the proxy serves, and the first response for an object can be without it.
fn assert_kept(service: &Service, origin: &Origin) {
    assert!(wait_until(LIMIT, || service.metric("strait_store_loaded") == 1));
    let asked = origin.asked().len();
    for object in objects(30) {
        let response = get(service.address, &object.target(), "");
        object.assert_whole(&response.body);
        assert!(wait_until(LIMIT, || is_hit(service.address, &object.target())));
    }
    assert_eq!(origin.asked().len(), asked);
}

#[test]
fn new_process_that_ends_leaves_the_running_one_unharmed() {
    let origin = Origin::of_bodies();
    let service = Service::start(origin.address, "");
    await_hits(&service, &objects(30));
    // A mistake in the file.
    service.write_config("nothing = 1\n");
    assert_unharmed(&service, &origin, "nothing: unknown key");
    assert!(service.process.stderr().contains("the new process: it ended (exit status: 2)\n"));
    // A file that the next process refuses as the running one does.
    let reverse = toml(origin.address);
    for (text, expected) in [
        ("", "the file is empty; is it being written?"),
        (reverse.trim_end(), "its last line has no end"),
        ("listen = [\"127.0.0.1:0\"]\n", "makes a forward proxy of a reverse proxy"),
    ] {
        service.write_config(text);
        assert_unharmed(&service, &origin, expected);
    }
    fs::remove_file(service.path("strait.toml")).unwrap();
    assert_unharmed(&service, &origin, "read ");
    service.write_config(&reverse);
    // A program that is missing, and one that cannot be executed.
    let program = service.path("strait-proxy");
    fs::remove_file(&program).unwrap();
    assert_unharmed(&service, &origin, "No such file");
    fs::write(&program, "text").unwrap();
    assert_unharmed(&service, &origin, "Permission denied");
    // One that crashes before it is ready, and one that crashes when it has the store.
    if !service.replace_program("os.kill(os.getpid(), 9)") {
        return;
    }
    assert_unharmed(&service, &origin, "it ended (signal: 9 (SIGKILL))");
    assert!(service.replace_program(
        "messages.send(b'ready reverse')\nassert messages.recv(64) == b'released'\nsys.exit(7)"
    ));
    assert_unharmed(&service, &origin, "it ended (exit status: 7)");
    // Another version.
    assert!(service.replace_program("messages.send(b'hello')\ntime.sleep(1000)"));
    assert_unharmed(&service, &origin, "its version has another order of steps");
    // The real one again.
    fs::remove_file(&program).unwrap();
    std::os::unix::fs::symlink(crate::rig::PROGRAM, &program).unwrap();
    let old = service.process.id();
    service.upgrade();
    await_end(old);
    assert_kept(&service, &origin);
}

#[test]
fn upgrade_fails_if_the_service_manager_does_not_learn_of_it() {
    let origin = Origin::of_bodies();
    let service = Service::launch(&toml(origin.address), |program, options| {
        Launch::new(program).args(options).env("NOTIFY_SOCKET", program.with_extension("missing"))
    });
    await_hits(&service, &objects(30));
    assert_unharmed(&service, &origin, "the service manager does not learn of it: notify");
}

#[test]
fn process_1_of_a_container_refuses_an_upgrade() {
    if !root_or_skip() {
        return;
    }
    let origin = Origin::of_bodies();
    let service = Service::launch(&toml(origin.address), |program, options| {
        let launch = Launch::new("unshare").args(["--pid", "--fork", "--kill-child", "--"]);
        launch.arg(program).args(options)
    });
    let parent = service.process.id();
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    let id = children.split_whitespace().next().unwrap().parse().unwrap();
    signal(id, Signal::USR2);
    service.wait_for("not upgraded, this process goes on: this is process 1", 1);
    assert_eq!(get(service.address, "/1/100", "").head.status, 200);
    assert_eq!(service.metric("strait_proxy_failed_upgrades_total"), 1);
}

/// Script that goes on when the test has written a file.
const WAITS: &str = "
go = os.path.dirname(sys.argv[0]) + '/go'
while not os.path.exists(go): time.sleep(0.01)
";

#[test]
fn second_upgrade_is_refused_and_a_reload_waits_for_the_end_of_the_first() {
    let origin = Origin::of_bodies();
    let service = Service::start(origin.address, "name = \"one\"\n");
    if !service.replace_program(&format!("{WAITS}\nsys.exit(1)")) {
        return;
    }
    let id = service.process.id();
    let via = || get(service.address, "/1/100", "").head.field("via").unwrap().to_owned();
    signal(id, Signal::USR2);
    service.wait_for(" starts\n", 1);
    signal(id, Signal::USR2);
    service.wait_for("not upgraded again: an upgrade is under way\n", 1);
    service.write_config(&(toml(origin.address) + "name = \"two\"\n"));
    signal(id, Signal::HUP);
    signal(id, Signal::USR2);
    service.wait_for("not upgraded again: an upgrade is under way\n", 2);
    // Both signals were seen, and the upgrade goes on.
    assert_eq!(via(), "1.1 one");
    fs::write(service.path("go"), "").unwrap();
    service.wait_for("it ended (exit status: 1)", 1);
    service.wait_for("reloaded\n", 1);
    assert_eq!(via(), "1.1 two");
    assert_eq!((service.ids().len(), service.metric("strait_proxy_failed_upgrades_total")), (2, 1));
}

#[test]
fn sigterm_ends_both_processes_during_an_upgrade() {
    let origin = Origin::of_bodies();
    for script in ["time.sleep(1000)", "messages.send(b'ready reverse')\nmessages.recv(64)\ntime.sleep(1000)"]
    {
        let service = Service::start(origin.address, "");
        let objects = objects(5);
        await_hits(&service, &objects);
        if !service.replace_program(&format!("print('runs', file=sys.stderr, flush=True)\n{script}")) {
            return;
        }
        signal(service.process.id(), Signal::USR2);
        service.wait_for("runs\n", 1);
        let ids = service.ids();
        signal(ids[0], Signal::TERM);
        for id in ids {
            await_end(id);
        }
        assert!(!service.process.stderr().contains("not upgraded"), "{}", service.process.stderr());
    }
}

/// Script that executes the program then, with its own number and descriptors.
fn waits_and_executes() -> String {
    let program = format!("program = {:?}", crate::rig::PROGRAM);
    let inherit = "for fd in range(3, 3 + len(names)): os.set_inheritable(fd, True)";
    format!("{WAITS}\n{program}\n{inherit}\nos.execv(program, sys.argv)")
}

#[test]
fn sigterm_to_a_new_process_that_waits_ends_the_upgrade_alone() {
    let origin = Origin::of_bodies();
    let service = Service::start(origin.address, "");
    await_hits(&service, &objects(30));
    if !service.replace_program(&waits_and_executes()) {
        return;
    }
    let id = service.process.id();
    signal(id, Signal::USR2);
    service.wait_for(" starts\n", 1);
    // Stopped, it sends no message.
    signal(id, Signal::STOP);
    fs::write(service.path("go"), "").unwrap();
    let new = service.last_started();
    // It has its handlers when it has its thread for removals.
    let has_thread = || {
        let tasks = fs::read_dir(format!("/proc/{new}/task")).unwrap();
        tasks
            .flatten()
            .any(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|it| it == "removals\n"))
    };
    assert!(wait_until(LIMIT, has_thread));
    signal(new, Signal::TERM);
    signal(id, Signal::CONT);
    service.wait_for("not upgraded, this process goes on: ", 1);
    await_end(new);
    assert!(
        service.process.stderr().contains("upgrade: a signal has cancelled it"),
        "{}",
        service.process.stderr()
    );
    assert_kept(&service, &origin);
}

#[test]
fn other_signals_to_a_new_process_that_starts_are_ignored() {
    let origin = Origin::of_bodies();
    let service = Service::start(origin.address, "");
    await_hits(&service, &objects(30));
    if !service.replace_program(&waits_and_executes()) {
        return;
    }
    let old = service.process.id();
    signal(old, Signal::USR2);
    service.wait_for(" starts\n", 1);
    for ignored in [Signal::HUP, Signal::USR1, Signal::USR2] {
        signal(service.last_started(), ignored);
    }
    fs::write(service.path("go"), "").unwrap();
    service.wait_for("upgraded: process ", 1);
    await_end(old);
    assert_kept(&service, &origin);
}
