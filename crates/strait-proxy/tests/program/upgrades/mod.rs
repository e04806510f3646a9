//! Upgrades by SIGUSR2: the next process takes over the sockets and the store, and no request
//! fails.

mod failures;
mod load;
mod rig;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixDatagram;

use lab::{Launch, root_or_skip, wait_until};
use rustix::process::Signal;
use strait_http2::{FRAME_HEAD_BYTES, PREFACE};

use self::rig::{Service, await_end, has_ended, is_hit, signal, toml};
use crate::body::Body;
use crate::client::{Client, await_hit, get};
use crate::origin::{Gate, Origin, send_body, send_body_behind};
use crate::rig::{LIMIT, everyones_copy, status};

/// Objects of 100 B to 300 KB.
fn objects(count: u64) -> Vec<Body> {
    (0..count).map(|id| Body::new(id, 100 + (id * id * 3331) % 299_900)).collect()
}

/// Waits until all of them are hits.
fn await_hits(service: &Service, objects: &[Body]) {
    for object in objects {
        await_hit(service.address, object);
    }
}

#[test]
fn next_process_has_all_objects() {
    let origin = Origin::of_bodies();
    let service = Service::start(origin.address, "");
    let objects = objects(100);
    await_hits(&service, &objects);
    for _ in 0..3 {
        let old = service.newest();
        let new = service.upgrade();
        await_end(old);
        assert!(!has_ended(new));
        for object in &objects {
            let response = get(service.address, &object.target(), "");
            object.assert_whole(&response.body);
            assert!(response.head.is_hit(), "{}", object.target());
        }
    }
    assert_eq!(origin.asked().len(), objects.len());
    // It stores others.
    await_hit(service.address, &Body::new(1000, 5000));
}

#[test]
fn connections_of_the_old_process_end_with_their_responses() {
    let gate = Gate::default();
    let behind = gate.clone();
    let origin = Origin::new(move |request, stream| {
        let fields = "Cache-Control: max-age=3600\r\n";
        if request.target.contains("slow") {
            send_body_behind(&behind, request, stream, fields)
        } else {
            send_body(request, stream, fields)
        }
    });
    let service = Service::start(origin.address, "");
    let (small, slow) = (Body::new(1, 500), Body::new(2, 3_000_000));
    await_hit(service.address, &small);
    let (mut idle, mut download, mut upload) = (service.client(), service.client(), service.client());
    let mut unused = service.client();
    small.assert_whole(&idle.fetch(&small.target(), "").unwrap().body);
    let target = format!("{}?slow", slow.target());
    download.ask("GET", &target, "").unwrap();
    gate.open(1_000_000);
    let head = download.head().unwrap();
    let first = download.exactly(500_000).unwrap();
    upload.ask("POST", &small.target(), "Content-Length: 10\r\n").unwrap();
    upload.stream.write_all(b"12345").unwrap();
    // A connection counts from its acceptance on.
    assert!(wait_until(LIMIT, || service.metric("strait_proxy_connections") >= 4));
    let old = service.newest();
    service.upgrade();
    // The next response is the last one of each.
    for client in [&mut idle, &mut unused] {
        let response = client.fetch(&small.target(), "").unwrap();
        small.assert_whole(&response.body);
        assert_eq!(response.head.field("connection"), Some("close"));
        assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
    }
    assert!(!has_ended(old));
    upload.stream.write_all(b"67890").unwrap();
    let answer = upload.head().unwrap();
    assert_eq!((answer.status, answer.field("connection")), (200, Some("close")));
    drop(upload);
    gate.open(u64::MAX);
    let rest = download.exactly(head.len().unwrap() - 500_000).unwrap();
    slow.assert_whole(&[first, rest].concat());
    // Its head came before the upgrade, and announced that the connection stays.
    let response = download.fetch(&small.target(), "").unwrap();
    assert_eq!(response.head.field("connection"), Some("close"));
    await_end(old);
}

/// Starts a forward proxy with a further line of the configuration, and opens a tunnel. Returns the
/// client, and the listener at the other end.
fn tunnel(config: &str) -> (Service, Client, TcpListener) {
    let far = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = far.local_addr().unwrap().port();
    let config = format!(
        "listen = [\"127.0.0.1:0\"]\naccess.reach = [\"127.0.0.0/8\"]\naccess.connect_ports = [{port}]\n{config}"
    );
    let service = Service::launch(&config, |program, options| Launch::new(program).args(options));
    let mut client = service.client();
    let request = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    client.stream.write_all(request.as_bytes()).unwrap();
    assert_eq!(client.head().unwrap().status, 200);
    (service, client, far)
}

#[test]
fn tunnel_stays_open_in_the_old_process() {
    let (service, mut client, far) = tunnel("");
    let (mut far, _) = far.accept().unwrap();
    let old = service.newest();
    service.upgrade();
    client.stream.write_all(b"ping").unwrap();
    let mut bytes = [0; 4];
    far.read_exact(&mut bytes).unwrap();
    far.write_all(&bytes).unwrap();
    assert_eq!(client.exactly(4).unwrap(), b"ping");
    assert!(!has_ended(old));
    drop((client, far));
    await_end(old);
}

#[test]
fn old_process_fails_with_its_successor_and_leaves_the_status_to_the_service_manager() {
    let (service, client, far) = tunnel("");
    let old = service.newest();
    let new = service.upgrade();
    signal(new, Signal::KILL);
    service.wait_for("has ended (signal: 9)", 1);
    let state = crate::rig::status(&new.to_string(), "State").unwrap();
    assert!(state.starts_with('Z'), "{state}");
    assert!(!has_ended(old));
    drop((client, far));
    await_end(old);
    service.wait_for(&format!("process {new}, which has replaced this one, has failed (signal: 9)\n"), 1);
}

#[test]
fn tunnel_ends_when_the_time_to_drain_is_over() {
    let (service, mut client, _far) = tunnel("timeouts.drain = 1\n");
    let old = service.newest();
    service.upgrade();
    await_end(old);
    assert!(!client.stream.read(&mut [0]).is_ok_and(|read| read > 0));
}

#[test]
fn idle_http2_connection_gets_goaway() {
    const GOAWAY: u8 = 7;
    let origin = Origin::of_bodies();
    let service = Service::start(origin.address, "http2.enabled = true\n");
    let mut stream = TcpStream::connect(service.address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    // The preface, and empty SETTINGS.
    stream.write_all(&[PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat()).unwrap();
    let mut kinds = Vec::new();
    let mut next = |stream: &mut TcpStream| {
        let mut head = [0; FRAME_HEAD_BYTES];
        stream.read_exact(&mut head).unwrap();
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        std::io::copy(&mut stream.take(len.into()), &mut std::io::sink()).unwrap();
        kinds.push(head[3]);
        head[3]
    };
    let settings = next(&mut stream);
    assert_eq!(settings, 4);
    let old = service.newest();
    service.upgrade();
    while next(&mut stream) != GOAWAY {}
    drop(stream);
    await_end(old);
}

#[test]
fn upload_that_ends_in_the_old_process_invalidates_for_the_new_one() {
    let gate = Gate::default();
    let behind = gate.clone();
    let origin = Origin::new(move |request, stream| {
        if request.method == "POST" {
            behind.beyond(0)?;
            return stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
        }
        send_body(request, stream, "Cache-Control: max-age=3600\r\n")
    });
    let service = Service::start(origin.address, "");
    let (changed, other) = (Body::new(1, 5000), Body::new(2, 5000));
    await_hits(&service, &[changed, other]);
    let mut upload = service.client();
    upload.ask("POST", &changed.target(), "Content-Length: 0\r\n").unwrap();
    assert!(wait_until(LIMIT, || origin.asked().iter().any(|request| request.method == "POST")));
    service.upgrade();
    assert!(is_hit(service.address, &changed.target()));
    gate.open(1);
    assert_eq!(upload.head().unwrap().status, 204);
    // The client that has the response does not get the older object.
    assert!(!is_hit(service.address, &changed.target()));
    assert!(is_hit(service.address, &other.target()));
}

#[test]
fn old_process_answers_no_request_from_its_cache() {
    let origin = Origin::of_bodies();
    let service = Service::start(origin.address, "access.purge = [\"127.0.0.1\"]\n");
    let object = Body::new(1, 5000);
    await_hit(service.address, &object);
    let mut clients = [service.client(), service.client()];
    for client in &mut clients {
        object.assert_whole(&client.fetch(&object.target(), "").unwrap().body);
    }
    service.upgrade();
    let mut purge = service.client();
    purge.ask("PURGE", &object.target(), "").unwrap();
    assert_eq!(purge.head().unwrap().status, 200);
    let asked = origin.asked().len();
    for client in &mut clients {
        let response = client.fetch(&object.target(), "").unwrap();
        object.assert_whole(&response.body);
        assert!(!response.head.is_hit());
    }
    assert_eq!(origin.asked().len(), asked + clients.len());
}

#[test]
fn addresses_of_the_new_configuration_are_opened_and_others_closed() {
    let origin = Origin::of_bodies();
    let service = Service::start(origin.address, "");
    let port = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (kept, opened) = (service.address, port());
    service.write_config(&format!(
        "listen = [\"{kept}\", \"{opened}\"]\norigin = \"http://{}\"\nworkers = 3\n",
        origin.address
    ));
    service.upgrade_listening(2);
    for address in [kept, opened] {
        assert_eq!(get(address, "/1/100", "").head.status, 200);
    }
    let old = service.newest();
    service.write_config(&format!("listen = [\"{opened}\"]\norigin = \"http://{}\"\n", origin.address));
    service.upgrade_listening(1);
    await_end(old);
    assert_eq!(get(opened, "/1/100", "").head.status, 200);
    assert!(TcpStream::connect(kept).is_err());
}

/// Returns true if a process has opened the store.
fn has_store(service: &Service, id: u32) -> bool {
    let lock = service.path("cache").join("lock");
    let entries = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|path| path == lock)
}

#[test]
fn killed_process_is_replaced_by_the_one_that_it_has_started() {
    let origin = Origin::of_bodies();
    for is_late in [false, true] {
        let service = Service::start(origin.address, "");
        let objects = objects(30);
        await_hits(&service, &objects);
        let old = service.newest();
        signal(old, Signal::USR2);
        service.wait_for(" starts\n", 1);
        if is_late {
            assert!(wait_until(LIMIT, || has_store(&service, service.last_started())));
        }
        signal(old, Signal::KILL);
        await_end(old);
        // The sockets were open all the time.
        let mut client = service.client();
        for object in &objects {
            object.assert_whole(&client.fetch(&object.target(), "").unwrap().body);
        }
        assert_eq!(service.ids().len(), 2);
        await_hits(&service, &objects);
        assert!(has_store(&service, service.last_started()));
    }
}

#[test]
fn removal_reaches_the_newest_of_three_processes() {
    let gate = Gate::default();
    let behind = gate.clone();
    let origin = Origin::new(move |request, stream| {
        if request.method == "POST" {
            behind.beyond(0)?;
            return stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
        }
        send_body(request, stream, "Cache-Control: max-age=3600\r\n")
    });
    let service = Service::start(origin.address, "");
    let changed = Body::new(1, 5000);
    await_hit(service.address, &changed);
    let mut upload = service.client();
    upload.ask("POST", &changed.target(), "Content-Length: 0\r\n").unwrap();
    assert!(wait_until(LIMIT, || origin.asked().iter().any(|request| request.method == "POST")));
    // The second one has no connection, and still waits for the end of the first one.
    service.upgrade();
    service.upgrade();
    assert!(is_hit(service.address, &changed.target()));
    gate.open(1);
    assert_eq!(upload.head().unwrap().status, 204);
    assert!(!is_hit(service.address, &changed.target()));
}

#[test]
fn socket_of_the_service_manager_keeps_its_name() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // The program inherits it.
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    let script = format!(
        "exec 3<&{}; export LISTEN_FDS=1 LISTEN_FDNAMES=web LISTEN_PID=$$; exec \"$@\"",
        listener.as_raw_fd()
    );
    let origin = Origin::of_bodies();
    let service = Service::launch(&toml(origin.address), |program, options| {
        Launch::new("bash").args(["-c", &script, "bash"]).arg(program).args(options)
    });
    assert_eq!(service.address, address);
    drop(listener);
    let object = Body::new(1, 5000);
    await_hit(address, &object);
    for _ in 0..2 {
        let new = service.upgrade();
        let variables = fs::read(format!("/proc/{new}/environ")).unwrap();
        let variables = String::from_utf8_lossy(&variables).into_owned();
        let names = variables.split('\0').find_map(|it| it.strip_prefix("LISTEN_FDNAMES=")).unwrap();
        assert_eq!(names, "web:strait.admin:strait.upgrade:strait.removals");
        assert!(is_hit(address, &object.target()));
    }
}

#[test]
fn service_manager_learns_the_process_id() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let hear = || {
        let mut bytes = [0; 200];
        let read = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..read].to_vec()).unwrap()
    };
    let origin = Origin::of_bodies();
    let service = Service::launch(&toml(origin.address), |program, options| {
        Launch::new(program).args(options).env("NOTIFY_SOCKET", &path)
    });
    assert_eq!(hear(), "READY=1");
    let old = service.newest();
    let new = service.upgrade();
    assert_eq!(hear(), format!("MAINPID={new}"));
    assert_eq!(hear(), "BARRIER=1");
    await_end(old);
    signal(new, Signal::HUP);
    assert!(hear().starts_with("RELOADING=1\n"));
    assert_eq!(hear(), "READY=1");
    signal(new, Signal::TERM);
    assert_eq!(hear(), "STOPPING=1");
}

#[test]
fn process_without_privileges_is_replaced() {
    if !root_or_skip() {
        return;
    }
    let (origin, folder) = (Origin::of_bodies(), tempfile::tempdir().unwrap());
    let copy = everyones_copy(folder.path());
    let secret = folder.path().join("secret.pem");
    let service = Service::launch(&toml(origin.address), |_, options| {
        let config = options.iter().position(|option| option == "--config").unwrap() + 1;
        let parent = std::path::Path::new(&options[config]).parent().unwrap();
        // The user reads the configuration, and writes to the cache.
        std::os::unix::fs::chown(parent, Some(65534), Some(65534)).unwrap();
        Launch::new(copy).args(options).args(["--user", "nobody"])
    });
    let object = Body::new(1, 5000);
    await_hit(service.address, &object);
    let new = service.upgrade();
    assert_eq!(status(&new.to_string(), "CapPrm").as_deref(), Some("0000000000000000"));
    assert!(is_hit(service.address, &object.target()));
    // A file of root alone.
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let tls = format!(
        "tls.listen = [\"127.0.0.1:0\"]\ntls.certificate = \"{0}\"\ntls.key = \"{0}\"\n",
        secret.display()
    );
    service.write_config(&(toml(origin.address) + &tls));
    signal(new, Signal::USR2);
    service.wait_for("not upgraded, this process goes on: ", 1);
    assert!(service.process.stderr().contains("tls.certificate"), "{}", service.process.stderr());
    assert!(is_hit(service.address, &object.target()));
}
