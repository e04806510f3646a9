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
    // The first of the two failed requests is repeated, if an idle connection was reset.
    assert!((12..=13).contains(&main.asked()) && rig.status(&main)["is_ejected"] == true);
    main.become_mode(Mode::Answer);
    rig.clock.advance(10);
    assert_eq!(client.get("/x").field("x-server"), Some(&*main.name));
    for (servers, expected) in [
        ("\"a:1 backup\"", "all servers are backups"),
        (
            "\"a:1\", \"b:1 spare\"",
            "\"spare\": expected weight=1 to weight=1000, connections=1 or more, or backup",
        ),
    ] {
        let toml = format!("pool.p.servers = [{servers}]\n[[site]]\n[[site.route]]\npool = \"p\"");
        let error = Config::from_toml(&toml).unwrap().check().unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn drained_server_finishes_its_requests_and_gets_no_new_ones() {
    let (a, b) = (Server::start(), Server::start());
    let mut rig = Rig::start(&[(&a, ""), (&b, "")], "slow_start = 100", "");
    a.become_mode(Mode::Hold);
    b.become_mode(Mode::Hold);
    let mut busy = [rig.client(), rig.client()];
    for client in &mut busy {
        client.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    assert!(wait_until(LIMIT, || (a.asked(), b.asked()) == (1, 1)));
    let drained = rig.change(&format!("/drain?server={}&pool=p", a.text));
    assert_eq!((drained.status(), drained.json()["pools"].as_u64()), (200, Some(1)));
    b.become_mode(Mode::Answer);
    let mut client = rig.client();
    let is_of_b = |client: &mut Client| client.get("/x").field("x-server") == Some(&*b.name);
    assert!((0..10).all(|_| is_of_b(&mut client)));
    let status = rig.status(&a);
    assert_eq!((&status["is_drained"], &status["load"]), (&true.into(), &1.into()), "{status}");
    let line = format!("strait_proxy_server_drained{{pool=\"p\",server=\"{}\"}} 1\n", a.text);
    assert!(rig.metrics().contains(&line));
    // The requests in progress end with their response.
    a.become_mode(Mode::Answer);
    assert!(busy.iter_mut().all(|client| client.answer().unwrap().status() == 200));
    assert!(wait_until(LIMIT, || rig.status(&a)["load"] == 0));
    // A reload keeps the state; no server is left once the other one is drained as well.
    rig.reload();
    assert!((0..10).all(|_| is_of_b(&mut client)));
    assert_eq!(rig.change(&format!("/drain?server={}", b.text)).status(), 200);
    let refused = client.get("/x");
    assert!(refused.status() == 503 && refused.field("retry-after").is_some(), "{}", refused.head);
    assert_eq!((rig.status(&a)["failures"].as_u64(), a.asked()), (Some(0), 1));
    // It comes back slowly.
    assert_eq!(rig.change(&format!("/undrain?server={}", b.text)).status(), 200);
    rig.clock.advance(200);
    assert_eq!(rig.change(&format!("/undrain?server={}", a.text)).status(), 200);
    assert!((0..10).filter(|_| is_of_b(&mut client)).count() >= 9);
    rig.clock.advance(100);
    assert_eq!((0..10).filter(|_| is_of_b(&mut client)).count(), 5);
    for path in ["/drain", "/drain?server=10.0.0.1:1", &format!("/drain?server={}&pool=q", a.text)] {
        assert_eq!(rig.change(path).status(), 404, "{path}");
    }
}

#[test]
fn requests_beyond_the_connections_of_a_server_wait_in_a_bounded_queue() {
    let (a, b) = (Server::start(), Server::start());
    let limits = "queue = 2\nqueue_timeout = 60";
    let rest = "limits.origin_connections_per_client = 0";
    let mut rig = Rig::start(&[(&a, "connections=1"), (&b, "connections=2")], limits, rest);
    a.become_mode(Mode::Hold);
    b.become_mode(Mode::Hold);
    let mut clients = Vec::new();
    let mut send = |rig: &Rig, path: &str| {
        let mut client = rig.client();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        clients.push(client);
    };
    let load = |rig: &Rig| [&a, &b].map(|server| rig.status(server)["load"].as_u64().unwrap());
    // Three have connections, four wait, two with each server.
    for number in 1..=7 {
        send(&rig, &format!("/{number}"));
        assert!(wait_until(LIMIT, || load(&rig).iter().sum::<u64>() == number), "{:?}", load(&rig));
    }
    let waiting = [&a, &b].map(|server| rig.status(server)["waiting"].as_u64());
    assert_eq!((load(&rig), waiting), ([3, 4], [Some(2), Some(2)]));
    assert!(wait_until(LIMIT, || (a.asked(), b.asked()) == (1, 2)));
    let answer = rig.client().get("/8");
    assert!(answer.status() == 503 && answer.field("retry-after").is_some(), "{}", answer.head);
    let refused =
        || [&a, &b].map(|server| rig.status(server)["refused"].as_u64().unwrap()).iter().sum::<u64>();
    assert_eq!((refused(), rig.status(&a)["failures"].as_u64()), (1, Some(0)));
    assert!(rig.metrics().contains("strait_proxy_server_waiting{"));
    a.become_mode(Mode::Answer);
    b.become_mode(Mode::Answer);
    for client in &mut clients {
        assert_eq!(client.answer().unwrap().status(), 200);
    }
    assert!(wait_until(LIMIT, || load(&rig) == [0, 0]));
    rig.reload();
    assert_eq!(rig.client().get("/9").status(), 200);
}

#[test]
fn request_that_waits_too_long_for_a_server_gets_503() {
    let server = Server::start();
    let rig = Rig::start(&[(&server, "connections=1")], "queue = 1\nqueue_timeout = 1", "");
    server.become_mode(Mode::Hold);
    let (mut first, mut second) = (rig.client(), rig.client());
    first.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(wait_until(LIMIT, || server.asked() == 1));
    second.send("GET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(second.answer().unwrap().status(), 503);
    server.become_mode(Mode::Answer);
    assert_eq!(first.answer().unwrap().status(), 200);
    assert_eq!((server.asked(), rig.client().get("/3").status()), (1, 200));
}

#[test]
fn followers_wait_with_the_request_that_waits_for_a_server() {
    let (full, slow) = (Server::start(), Server::start());
    let pools = format!(
        "queue = 1\nqueue_timeout = 600\n[pool.q]\nservers = [\"{}\"]\n[[site]]\nhosts = [\"slow.example\"]\n[[site.route]]\npool = \"q\"",
        slow.text
    );
    // A follower waits as long for the head of a response.
    let rest = "timeouts.origin = 3\nlimits.origin_connections_per_client = 0";
    let rig = Rig::start(&[(&full, "connections=1")], &pools, rest);
    // A request with an unfinished body has the connection.
    let mut first = rig.client();
    let (len, ahead) = (40_000, 20_000);
    first.send(format!("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n"));
    first.send("x".repeat(ahead));
    assert!(wait_until(LIMIT, || rig.status(&full)["load"] == 1));
    let mut others = [rig.client(), rig.client()];
    let [leader, follower] = &mut others;
    leader.send("GET /stored HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(wait_until(LIMIT, || rig.status(&full)["waiting"] == 1));
    follower.send("GET /stored HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(wait_until(LIMIT, || rig.admin_status()["fill_progress"][0]["followers"] == 1));
    // The limit for a head ends for this request, and has begun earlier for the follower.
    slow.become_mode(Mode::Hang);
    let late = rig.ask("GET /x HTTP/1.1\r\nHost: slow.example\r\n\r\n");
    assert_eq!(late.status(), 504, "{}", late.head);
    let status = rig.status(&full);
    assert_eq!((&status["waiting"], &status["refused"]), (&1.into(), &0.into()), "{status}");
    first.send("x".repeat(len - ahead));
    assert_eq!(first.answer().unwrap().status(), 200);
    for client in &mut others {
        assert_eq!(client.answer().unwrap().status(), 200);
    }
    assert_eq!(full.asked(), 2);
}

#[test]
fn follower_leaves_the_queue_of_one_server_for_another() {
    let (a, b) = (Server::start(), Server::start());
    let servers = [(&a, "connections=1"), (&b, "connections=1")];
    // A follower waits as long for the head of a response.
    let rest = "timeouts.origin = 1\nlimits.origin_connections_per_client = 0";
    let rig = Rig::start(&servers, "queue = 5\nqueue_timeout = 600", rest);
    let sum =
        |name: &str| [&a, &b].iter().map(|server| rig.status(server)[name].as_u64().unwrap()).sum::<u64>();
    // Requests with unfinished bodies have the connections.
    let mut is_first_of_a = false;
    let mut busy = [rig.client(), rig.client()];
    for (client, number) in busy.iter_mut().zip(1..) {
        client.send("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n");
        client.send("x".repeat(20_000));
        assert!(wait_until(LIMIT, || sum("load") == number));
        if number == 1 {
            is_first_of_a = rig.status(&a)["load"] == 1;
        }
    }
    let [first, second] = busy;
    let (of_a, of_b) = if is_first_of_a { (first, second) } else { (second, first) };
    let (mut leader, mut follower) = (rig.client(), rig.client());
    leader.send("GET /stored HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(wait_until(LIMIT, || sum("waiting") == 1));
    let waits_for_a = rig.status(&a)["waiting"] == 1;
    let (full, free) = if waits_for_a { (&a, &b) } else { (&b, &a) };
    let (of_full, of_free) = if waits_for_a { (of_a, of_b) } else { (of_b, of_a) };
    drop(of_free);
    assert!(wait_until(LIMIT, || rig.status(free)["load"] == 0));
    follower.send("GET /stored HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = follower.answer().unwrap();
    assert_eq!((answer.status(), answer.field("x-server")), (200, Some(&*free.name)), "{}", answer.head);
    assert_eq!((&rig.status(full)["waiting"], full.asked()), (&1.into(), 0));
    drop(of_full);
    assert_eq!(leader.answer().unwrap().status(), 200);
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
