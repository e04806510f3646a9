//! Names of servers: each address is a server, and changes of the records are followed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use lab::wait_until;
use serde_json::Value;
use strait_proxy::{Clock, Config, Proxy};

use crate::dns_rig::{DnsServer, Fault, addresses, alias, srv};
use crate::pool_rig::{Mode, Rig, Server};
use crate::rig::{Client, LIMIT};

/// Starts servers at addresses, all with the same port.
fn servers<const N: usize>(addresses: [&str; N]) -> [Server; N] {
    // The port of the first one may be in use at another address.
    let start = || {
        let first = Server::at(addresses[0], 0);
        let port = first.port();
        let is_free = |address: &&str| std::net::TcpListener::bind((*address, port)).is_ok();
        addresses[1..].iter().all(is_free).then_some((first, port))
    };
    let (first, port) = std::iter::repeat_with(start).take(100).flatten().next().unwrap();
    let mut first = Some(first);
    addresses.map(|address| first.take().unwrap_or_else(|| Server::at(address, port)))
}

/// Returns the servers of the proxy as the admin address names them.
fn listed(rig: &Rig) -> Vec<String> {
    let status = rig.admin_status();
    let servers = status["servers"].as_array().unwrap();
    servers.iter().map(|server| server["server"].as_str().unwrap().to_owned()).collect()
}

/// Returns the status of the only name.
fn name(rig: &Rig) -> Value {
    rig.admin_status()["names"][0].clone()
}

/// Waits until the only name has these addresses.
pub(crate) fn await_addresses(rig: &Rig, expected: &[&str]) {
    let is_there = || {
        let own = name(rig)["addresses"].as_array().unwrap().clone();
        own.iter().map(|address| address.as_str().unwrap()).eq(expected.iter().copied())
    };
    assert!(wait_until(LIMIT, is_there), "{expected:?}: {}", name(rig));
}

/// Returns the server that answers.
fn asked(client: &mut Client) -> String {
    let answer = client.get("/x");
    assert_eq!(answer.status(), 200, "{}", answer.head);
    answer.field("x-server").unwrap().to_owned()
}

#[test]
fn addresses_of_a_name_are_servers() {
    let dns = DnsServer::start();
    let [a, b, other] = servers(["127.0.0.2", "127.0.0.3", "127.0.0.4"]);
    dns.set(addresses("app.test", 60, &["127.0.0.3", "127.0.0.2"]));
    let port = a.port();
    let rig = Rig::of(&[&format!("app.test:{port} weight=2"), &other.text], "", &dns.section());
    await_addresses(&rig, &["127.0.0.2", "127.0.0.3"]);
    let mut client = rig.client();
    for _ in 0..50 {
        asked(&mut client);
    }
    assert_eq!((a.asked(), b.asked(), other.asked()), (20, 20, 10));
    let names = ["127.0.0.2", "127.0.0.3"].map(|address| format!("app.test:{port}@{address}"));
    assert_eq!(listed(&rig), [&names[0], &names[1], &other.text].map(String::as_str));
    let metrics = rig.metrics();
    for line in [
        format!("strait_proxy_server_requests_total{{pool=\"p\",server=\"{}\"}} 20\n", names[0]),
        format!("strait_proxy_name_addresses{{pool=\"p\",name=\"app.test:{port}\"}} 2\n"),
        format!("strait_proxy_name_lookup_failures_total{{pool=\"p\",name=\"app.test:{port}\"}} 0\n"),
    ] {
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}

#[test]
fn records_that_change_under_load_fail_no_request() {
    let dns = DnsServer::start();
    let all = servers(["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"]);
    dns.set(addresses("app.test", 1, &["127.0.0.2", "127.0.0.3"]));
    let rig = Rig::of(&[&format!("app.test:{}", all[0].port())], "", &dns.section());
    let (is_over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = rig.client();
                while !is_over.load(Ordering::SeqCst) {
                    for (number, answer) in [client.get("/x"), rig.post()].iter().enumerate() {
                        assert_eq!(answer.status(), 200, "{number}: {}", answer.head);
                    }
                    done.fetch_add(2, Ordering::SeqCst);
                }
            });
        }
        let _end = End(&is_over);
        await_addresses(&rig, &["127.0.0.2", "127.0.0.3"]);
        assert!(wait_until(LIMIT, || all[0].asked() > 20 && all[1].asked() > 20));
        // One stays, one leaves, one joins.
        dns.set(addresses("app.test", 1, &["127.0.0.3", "127.0.0.4"]));
        await_addresses(&rig, &["127.0.0.3", "127.0.0.4"]);
        assert!(wait_until(LIMIT, || all[2].asked() > 20));
        let (left, now) = (settled(&all[0]), done.load(Ordering::SeqCst));
        assert!(wait_until(LIMIT, || done.load(Ordering::SeqCst) > now + 40));
        assert_eq!(all[0].asked(), left, "a server that has left gets no requests");
        all[0].become_mode(Mode::Dead);
        // All change, and the old ones end once their last requests have.
        dns.set(addresses("app.test", 1, &["127.0.0.5"]));
        await_addresses(&rig, &["127.0.0.5"]);
        for old in &all[1..3] {
            settled(old);
            old.become_mode(Mode::Dead);
        }
        assert!(wait_until(LIMIT, || all[3].asked() > 20));
    });
    assert_eq!(listed(&rig), [format!("app.test:{}@127.0.0.5", all[3].port())]);
}

/// Ends the clients also if the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Returns the requests to a server once they no longer grow.
fn settled(server: &Server) -> usize {
    let mut last = server.asked();
    let is_settled = || {
        thread::sleep(std::time::Duration::from_millis(50));
        std::mem::replace(&mut last, server.asked()) == server.asked()
    };
    assert!(wait_until(LIMIT, is_settled));
    server.asked()
}

#[test]
fn server_that_cannot_be_reached_is_looked_up_before_its_records_expire() {
    let dns = DnsServer::start();
    let [a, b] = servers(["127.0.0.2", "127.0.0.3"]);
    dns.set(addresses("app.test", 3600, &["127.0.0.2"]));
    let rig =
        Rig::of(&[&format!("app.test:{}", a.port())], "", &format!("dns.ttl_max = 3600\n{}", dns.section()));
    await_addresses(&rig, &["127.0.0.2"]);
    assert_eq!(asked(&mut rig.client()), "127.0.0.2");
    dns.set(addresses("app.test", 3600, &["127.0.0.3"]));
    a.become_mode(Mode::Dead);
    assert!(wait_until(LIMIT, || rig.client().get("/x").status() == 200));
    assert_eq!(asked(&mut rig.client()), "127.0.0.3");
    assert!(b.asked() > 0);
}

#[test]
fn lifetime_is_that_of_the_records_with_aliases() {
    let dns = DnsServer::start();
    let [a, _b] = servers(["127.0.0.2", "127.0.0.3"]);
    // The alias expires first.
    let with_alias = |target| {
        let mut records = addresses("one.test", 3600, &["127.0.0.2"]);
        records.extend(addresses("two.test", 3600, &["127.0.0.3"]));
        records.push(alias("app.test", 1, target));
        records
    };
    dns.set(with_alias("one.test"));
    let rig =
        Rig::of(&[&format!("app.test:{}", a.port())], "", &format!("dns.ttl_max = 3600\n{}", dns.section()));
    await_addresses(&rig, &["127.0.0.2"]);
    dns.set(with_alias("two.test"));
    await_addresses(&rig, &["127.0.0.3"]);
    // Records with a long lifetime are not looked up again.
    dns.set(addresses("app.test", 3600, &["127.0.0.2"]));
    await_addresses(&rig, &["127.0.0.2"]);
    dns.set(addresses("app.test", 3600, &["127.0.0.3"]));
    let count = dns.asked();
    let lookups = name(&rig)["lookups"].clone();
    for _ in 0..20 {
        assert_eq!(asked(&mut rig.client()), "127.0.0.2");
    }
    assert_eq!((dns.asked(), &name(&rig)["lookups"]), (count, &lookups));
}

#[test]
fn reload_keeps_addresses_and_counters() {
    let dns = DnsServer::start();
    let [a] = servers(["127.0.0.2"]);
    dns.set(addresses("app.test", 1, &["127.0.0.2"]));
    let mut rig = Rig::of(&[&format!("app.test:{}", a.port())], "", &dns.section());
    await_addresses(&rig, &["127.0.0.2"]);
    assert_eq!(asked(&mut rig.client()), "127.0.0.2");
    dns.become_fault(Fault::Fails);
    rig.reload();
    await_addresses(&rig, &["127.0.0.2"]);
    assert_eq!(asked(&mut rig.client()), "127.0.0.2");
    assert_eq!(rig.admin_status()["servers"][0]["requests"], 2);
    // It is followed as before.
    dns.become_fault(Fault::None);
    dns.set(addresses("app.test", 1, &["127.0.0.9"]));
    await_addresses(&rig, &["127.0.0.9"]);
}

#[test]
fn reload_changes_the_dns_server() {
    let (dns, other) = (DnsServer::start(), DnsServer::start());
    let [a, _b] = servers(["127.0.0.2", "127.0.0.3"]);
    dns.set(addresses("app.test", 3600, &["127.0.0.2"]));
    other.set(addresses("app.test", 3600, &["127.0.0.3"]));
    let config = |dns: &DnsServer, kind: &str| {
        let toml = format!("workers = 1\nlisten = [\"127.0.0.1:0\"]\n{kind}\n{}", dns.section());
        Config::from_toml(&toml).unwrap()
    };
    for kind in
        [format!("origin = \"http://app.test:{}\"", a.port()), "access.reach = [\"127.0.0.0/8\"]".to_owned()]
    {
        let mut proxy = Proxy::start(&config(&dns, &kind), Clock::fixed(1_700_000_000)).unwrap();
        let get = |proxy: &Proxy| {
            let mut client = Client::to(proxy.address());
            let is_forward = kind.starts_with("access");
            let host = format!("app.test:{}", a.port());
            let begin = if is_forward { format!("http://{host}") } else { String::new() };
            client.send(format!("GET {begin}/x HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
            client.answer().unwrap().field("x-server").unwrap_or_default().to_owned()
        };
        assert_eq!(get(&proxy), "127.0.0.2", "{kind}");
        assert!(proxy.reload(&config(&other, &kind)).unwrap().is_empty());
        a.become_mode(Mode::Reset);
        assert!(wait_until(LIMIT, || get(&proxy) == "127.0.0.3"), "{kind}");
        a.become_mode(Mode::Answer);
    }
}

#[test]
fn each_address_has_the_maximum_of_connections() {
    let dns = DnsServer::start();
    let [a, b] = servers(["127.0.0.2", "127.0.0.3"]);
    dns.set(addresses("app.test", 1, &["127.0.0.2"]));
    let rest = format!("limits.origin_connections_per_client = 0\n{}", dns.section());
    let text = format!("app.test:{} connections=1", a.port());
    let rig = Rig::of(&[&text], "queue = 1\nqueue_timeout = 600", &rest);
    await_addresses(&rig, &["127.0.0.2"]);
    dns.set(addresses("app.test", 1, &["127.0.0.2", "127.0.0.3"]));
    await_addresses(&rig, &["127.0.0.2", "127.0.0.3"]);
    a.become_mode(Mode::Hold);
    b.become_mode(Mode::Hold);
    let waiting = || {
        let servers = rig.admin_status()["servers"].clone();
        [0, 1].map(|at| servers[at]["waiting"].as_u64().unwrap())
    };
    let mut clients: Vec<_> = (0..4).map(|_| rig.client()).collect();
    for (client, asked) in clients.iter_mut().zip([1, 2, 2, 2]) {
        client.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(wait_until(LIMIT, || a.asked() + b.asked() == asked));
    }
    assert!(wait_until(LIMIT, || waiting() == [1, 1]), "{:?}", waiting());
    // Both queues are full.
    assert_eq!(rig.client().get("/x").status(), 503);
    a.become_mode(Mode::Answer);
    b.become_mode(Mode::Answer);
    for client in &mut clients {
        assert_eq!(client.answer().unwrap().status(), 200);
    }
    assert_eq!((a.asked(), b.asked()), (2, 2));
}

#[test]
fn name_and_each_of_its_servers_can_be_drained() {
    let dns = DnsServer::start();
    let [a, b, other] = servers(["127.0.0.2", "127.0.0.3", "127.0.0.4"]);
    dns.set(addresses("app.test", 1, &["127.0.0.2"]));
    let text = format!("app.test:{}", a.port());
    let rig = Rig::of(&[&text, &other.text], "", &dns.section());
    await_addresses(&rig, &["127.0.0.2"]);
    let of = |count: usize| {
        let mut client = rig.client();
        let mut all: Vec<_> = (0..count).map(|_| asked(&mut client)).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    assert_eq!(rig.change(&format!("/drain?server={text}@127.0.0.2")).status(), 200);
    assert_eq!(of(8), ["127.0.0.4"]);
    assert_eq!(rig.change(&format!("/undrain?server={text}@127.0.0.2")).status(), 200);
    assert_eq!(of(8), ["127.0.0.2", "127.0.0.4"]);
    assert_eq!(rig.change(&format!("/drain?server={text}")).status(), 200);
    // Its further addresses are out as well.
    dns.set(addresses("app.test", 1, &["127.0.0.2", "127.0.0.3"]));
    await_addresses(&rig, &["127.0.0.2", "127.0.0.3"]);
    assert_eq!((of(8), b.asked()), (vec!["127.0.0.4".to_owned()], 0));
    assert_eq!(rig.change(&format!("/undrain?server={text}")).status(), 200);
    assert_eq!(of(12), ["127.0.0.2", "127.0.0.3", "127.0.0.4"]);
    assert_eq!(rig.change(&format!("/drain?server={text}@127.0.0.9")).status(), 404);
}

#[test]
fn checks_follow_the_addresses() {
    let dns = DnsServer::start();
    let [a, b] = servers(["127.0.0.2", "127.0.0.3"]);
    b.become_mode(Mode::Reset);
    dns.set(addresses("app.test", 1, &["127.0.0.2"]));
    let check =
        "failures = 0\ncheck = { path = \"/healthz\", interval = 1, timeout = 1, rise = 1, fall = 1 }";
    let rig = Rig::of(&[&format!("app.test:{}", a.port())], check, &dns.section());
    await_addresses(&rig, &["127.0.0.2"]);
    assert!(wait_until(LIMIT, || a.asked() > 1));
    dns.set(addresses("app.test", 1, &["127.0.0.2", "127.0.0.3"]));
    await_addresses(&rig, &["127.0.0.2", "127.0.0.3"]);
    assert!(wait_until(LIMIT, || rig.admin_status()["servers"][1]["is_down"] == true));
    for _ in 0..8 {
        assert_eq!(asked(&mut rig.client()), "127.0.0.2");
    }
    b.become_mode(Mode::Answer);
    assert!(wait_until(LIMIT, || rig.admin_status()["servers"][1]["is_down"] == false));
    dns.set(addresses("app.test", 1, &["127.0.0.3"]));
    await_addresses(&rig, &["127.0.0.3"]);
    let checked = settled(&a);
    let now = b.asked();
    assert!(wait_until(LIMIT, || b.asked() > now + 2));
    assert_eq!(a.asked(), checked, "a server that has left is not checked");
}

#[test]
fn service_has_the_servers_of_its_records_by_priority_and_weight() {
    const NAME: &str = "_http._tcp.app.test";
    let dns = DnsServer::start();
    let [a, b, backup] = [Server::at("127.0.0.2", 0), Server::at("127.0.0.3", 0), Server::at("127.0.0.4", 0)];
    let records = |weight_of_b| {
        let mut records = addresses("a.test", 1, &["127.0.0.2"]);
        records.extend(addresses("b.test", 1, &["127.0.0.3"]));
        records.extend(addresses("backup.test", 1, &["127.0.0.4"]));
        records.push(srv(NAME, 1, (10, 30, a.port()), "a.test"));
        records.push(srv(NAME, 1, (10, weight_of_b, b.port()), "b.test"));
        records.push(srv(NAME, 1, (20, 90, backup.port()), "backup.test"));
        records
    };
    dns.set(records(10));
    let rig = Rig::of(&[&format!("srv://{NAME}")], "", &dns.section());
    // The first request waits for the records.
    let mut client = rig.client();
    for _ in 0..40 {
        asked(&mut client);
    }
    assert_eq!((a.asked(), b.asked(), backup.asked()), (30, 10, 0));
    let text = |server: &Server, address| format!("app.test:{}@{address}", server.port());
    assert_eq!(listed(&rig), [text(&a, "127.0.0.2"), text(&b, "127.0.0.3"), text(&backup, "127.0.0.4")]);
    assert_eq!(rig.admin_status()["servers"][2]["is_backup"], true);
    // Other weights keep the counters.
    dns.set(records(30));
    let asked_before = (a.asked(), b.asked());
    assert!(wait_until(LIMIT, || {
        let before = (a.asked(), b.asked());
        (0..4).for_each(|_| drop(asked(&mut client)));
        (a.asked() - before.0, b.asked() - before.1) == (2, 2)
    }));
    let of_a = rig.admin_status()["servers"][0]["requests"].as_u64().unwrap();
    assert!(of_a > asked_before.0 as u64, "{of_a}");
    a.become_mode(Mode::Dead);
    b.become_mode(Mode::Dead);
    assert!(wait_until(LIMIT, || asked(&mut client) == "127.0.0.4"));
    // The service moves.
    let mut moved = addresses("backup.test", 1, &["127.0.0.4"]);
    moved.push(srv(NAME, 1, (0, 0, backup.port()), "backup.test"));
    dns.set(moved);
    await_addresses(&rig, &["127.0.0.4"]);
    assert_eq!(asked(&mut client), "127.0.0.4");
    assert_eq!(rig.admin_status()["servers"][0]["is_backup"], false);
}

#[test]
fn name_of_a_service_may_be_an_alias() {
    let (dns, server) = (DnsServer::start(), Server::at("127.0.0.2", 0));
    let mut records = addresses("target.test", 60, &["127.0.0.2"]);
    records.push(alias("_http._tcp.app.test", 60, "_http._tcp.other.test"));
    records.push(alias("_http._tcp.other.test", 1, "service.test"));
    records.push(srv("service.test", 60, (0, 0, server.port()), "target.test"));
    dns.set(records);
    let rig = Rig::of(&["srv://_http._tcp.app.test"], "", &dns.section());
    assert_eq!(asked(&mut rig.client()), "127.0.0.2");
    // The lifetime of an alias counts as well.
    let moved = Server::at("127.0.0.3", server.port());
    let mut records = addresses("target.test", 60, &["127.0.0.3"]);
    records.push(alias("_http._tcp.app.test", 60, "moved.test"));
    records.push(srv("moved.test", 60, (0, 0, moved.port()), "target.test"));
    dns.set(records);
    await_addresses(&rig, &["127.0.0.3"]);
    assert_eq!(asked(&mut rig.client()), "127.0.0.3");
}

#[test]
fn one_line_form_follows_its_name() {
    let dns = DnsServer::start();
    let [a, b] = servers(["127.0.0.2", "127.0.0.3"]);
    dns.set(addresses("app.test", 1, &["127.0.0.2"]));
    let toml = format!(
        "workers = 1\nlisten = [\"127.0.0.1:0\"]\norigin = \"http://app.test:{}\"\n{}",
        a.port(),
        dns.section()
    );
    let proxy = Proxy::start(&Config::from_toml(&toml).unwrap(), Clock::fixed(1_700_000_000)).unwrap();
    let mut client = Client::to(proxy.address());
    assert_eq!(asked(&mut client), "127.0.0.2");
    dns.set(addresses("app.test", 1, &["127.0.0.3"]));
    assert!(wait_until(LIMIT, || asked(&mut client) == "127.0.0.3"));
    a.become_mode(Mode::Dead);
    assert_eq!(asked(&mut client), "127.0.0.3");
    assert!(b.asked() >= 2);
}

#[test]
fn forward_proxy_checks_each_address_of_a_name_that_changes() {
    let dns = DnsServer::start();
    let [a, b] = servers(["127.0.0.2", "127.0.0.3"]);
    dns.set(addresses("app.test", 1, &["127.0.0.2"]));
    let toml = format!(
        "workers = 1\nlisten = [\"127.0.0.1:0\"]\naccess.reach = [\"127.0.0.2/32\"]\n{}",
        dns.section()
    );
    let proxy = Proxy::start(&Config::from_toml(&toml).unwrap(), Clock::fixed(1_700_000_000)).unwrap();
    let get = || {
        let mut client = Client::to(proxy.address());
        client.send(format!("GET http://app.test:{}/x HTTP/1.1\r\nHost: app.test\r\n\r\n", a.port()));
        client.answer().unwrap().status()
    };
    assert_eq!(get(), 200);
    // The name now leads where the proxy may not connect to (DNS rebinding).
    dns.set(addresses("app.test", 1, &["127.0.0.3"]));
    a.become_mode(Mode::Dead);
    assert!(wait_until(LIMIT, || get() == 403));
    assert_eq!(b.asked(), 0);
    // A literal address is not looked up, and does not need the DNS server.
    dns.become_fault(Fault::Silent);
    let mut client = Client::to(proxy.address());
    client.send(format!("GET http://127.0.0.3:{}/x HTTP/1.1\r\nHost: a\r\n\r\n", b.port()));
    assert_eq!(client.answer().unwrap().status(), 403);
}
