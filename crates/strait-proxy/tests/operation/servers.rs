//! Kinds and options of the servers of a pool.

use lab::wait_until;
use strait_proxy::{Clock, Config, Proxy};

use crate::pool_rig::{LONG, Mode, Rig, Server};
use crate::rig::{Client, LIMIT};

#[test]
fn unix_socket_is_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.sock");
    let (unix, tcp) = (Server::on_unix(&path), Server::start());
    let check = "check = { path = \"/healthz\", interval = 1, timeout = 1, rise = 1, fall = 1 }";
    let rig = Rig::start(&[(&unix, "weight=3"), (&tcp, "")], check, "");
    let mut client = rig.client();
    let mut of_unix = 0;
    for _ in 0..8 {
        let answer = client.get("/x");
        assert_eq!((answer.status(), answer.text().as_str()), (200, "ok"));
        of_unix += usize::from(answer.field("x-server") == Some(&*unix.name));
    }
    assert_eq!(of_unix, 6);
    for _ in 0..4 {
        assert_eq!((rig.post().status(), client.get("/long").text()), (200, "x".repeat(LONG)));
    }
    assert!(rig.metrics().contains(&format!("server=\"unix:{}\"", path.display())));
    // Connections are refused: its socket has no listener.
    unix.become_mode(Mode::Dead);
    assert!(wait_until(LIMIT, || rig.status(&unix)["is_down"] == true));
    assert_eq!(client.get("/x").field("x-server"), Some(&*tcp.name));
    std::fs::remove_file(&path).unwrap();
    let _again = Server::on_unix(&path);
    assert!(wait_until(LIMIT, || rig.status(&unix)["is_down"] == false));
}

#[test]
fn backup_gets_requests_that_no_other_server_can_answer() {
    let (main, backup) = (Server::start(), Server::start());
    let rig = Rig::start(&[(&main, ""), (&backup, "weight=5 backup")], "failures = 2", "");
    let mut client = rig.client();
    for _ in 0..10 {
        assert_eq!(client.get("/x").field("x-server"), Some(&*main.name));
    }
    main.become_mode(Mode::Reset);
    for _ in 0..10 {
        assert_eq!(client.get("/x").field("x-server"), Some(&*backup.name));
    }
    assert_eq!((main.asked(), rig.status(&main)["is_ejected"] == true), (12, true));
    main.become_mode(Mode::Answer);
    rig.clock.advance(10);
    assert_eq!(client.get("/x").field("x-server"), Some(&*main.name));
    for (servers, expected) in [
        ("\"a:1 backup\"", "all servers are backups"),
        ("\"a:1\", \"b:1 spare\"", "\"spare\": expected weight=1 to weight=1000"),
    ] {
        let toml = format!("pool.p.servers = [{servers}]\n[[site]]\n[[site.route]]\npool = \"p\"");
        let error = Config::from_toml(&toml).unwrap().check().unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn unix_socket_is_the_only_origin() {
    let dir = tempfile::tempdir().unwrap();
    let unix = Server::on_unix(&dir.path().join("app.sock"));
    let toml = format!("listen = [\"127.0.0.1:0\"]\nworkers = 1\norigin = \"{}\"", unix.text);
    let config = Config::from_toml(&toml).unwrap();
    let proxy = Proxy::start(&config, Clock::system()).unwrap();
    let mut client = Client::to(proxy.address());
    client.send("GET /stored HTTP/1.0\r\n\r\n");
    assert_eq!(client.answer().unwrap().status(), 200);
    for wrong in ["unix:app.sock", "unix:@app", "unix:"] {
        let config = Config::from_toml(&format!("origin = \"{wrong}\"")).unwrap();
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains("expected the whole path") && !error.contains('\n'), "{error}");
    }
}
