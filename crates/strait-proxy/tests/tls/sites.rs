//! Sites with certificates of their own, and the example configuration.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lab::wait_until;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use strait_proxy::{Clock, Config, Proxy};

use crate::tls::origin::Origin;
use crate::tls::rig::{Authority, LIMIT, connect, field, read_head};

/// Gets a path of a host over TLS, with the name `sni` in the handshake. Fails if the certificate
/// is not for that name.
pub(crate) fn get(
    client: &Arc<ClientConfig>,
    address: SocketAddr,
    sni: &str,
    (host, path): (&str, &str),
) -> io::Result<String> {
    let session =
        ClientConnection::new(client.clone(), ServerName::try_from(sni.to_owned()).unwrap()).unwrap();
    let mut stream = StreamOwned::new(session, connect(address));
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn status(response: &str) -> &str {
    response.split(' ').nth(1).unwrap_or_default()
}

/// Configuration with a certificate of each of two sites, and one for other clients.
fn toml(authority: &Authority, first: &str) -> String {
    let file = |name: &str| authority.file(name).display().to_string();
    let certificate = |name: &str| {
        format!(
            "certificate = \"{}\"\nkey = \"{}\"\n",
            file(&format!("{name}.pem")),
            file(&format!("{name}.key"))
        )
    };
    format!(
        "workers = 1\nlisten = []\n[tls]\nlisten = [\"127.0.0.1:0\"]\n{}\
         [[site]]\nhosts = [\"one.example\"]\n{}[[site.route]]\nrespond = {{ body = \"one\" }}\n\
         [[site]]\nhosts = [\"*.two.example\"]\n{}[[site.route]]\nrespond = {{ body = \"two\" }}\n",
        certificate("other"),
        certificate(first),
        certificate("two"),
    )
}

#[test]
fn client_gets_the_certificate_of_the_host_that_it_names() {
    let authority = Authority::new();
    for (name, subject) in [("one", "one.example"), ("two", "*.two.example"), ("other", "other.example")] {
        authority.sign(name, subject, 2999);
    }
    let proxy = Proxy::start(&Config::from_toml(&toml(&authority, "one")).unwrap(), Clock::system()).unwrap();
    let (client, address) = (authority.client(), proxy.address());
    for (sni, expected) in [("one.example", "one"), ("ONE.example", "one"), ("a.two.example", "two")] {
        let response = get(&client, address, sni, (sni, "/")).unwrap();
        assert!(response.ends_with(expected), "{sni}: {response}");
    }
    // A host without a site: the client repeats the request on another connection after 421.
    let response = get(&client, address, "other.example", ("other.example", "/")).unwrap();
    assert_eq!(status(&response), "421", "{response}");
    // The certificate of another host is not valid for the name.
    assert!(get(&client, address, "three.example", ("one.example", "/")).is_err());
}

#[test]
fn sticky_cookie_is_secure_over_tls() {
    let authority = Authority::new();
    authority.sign("one", "one.example", 2999);
    let origin = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = origin.local_addr().unwrap();
    let answers = std::thread::spawn(move || {
        let (mut stream, _) = origin.accept().unwrap();
        read_head(&mut stream).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
    });
    let file = |name: &str| authority.file(name).display().to_string();
    let toml = format!(
        "workers = 1\nlisten = []\n[tls]\nlisten = [\"127.0.0.1:0\"]\ncertificate = \"{}\"\nkey = \"{}\"\n\
         [pool.p]\nservers = [\"{server}\"]\nsticky = \"S\"\n[[site]]\n[[site.route]]\npool = \"p\"\n",
        file("one.pem"),
        file("one.key"),
    );
    let proxy = Proxy::start(&Config::from_toml(&toml).unwrap(), Clock::system()).unwrap();
    let response = get(&authority.client(), proxy.address(), "one.example", ("one.example", "/")).unwrap();
    let cookie = field(&response, "Set-Cookie");
    assert!(cookie.is_some_and(|it| it.ends_with("; HttpOnly; SameSite=Lax; Secure")), "{response}");
    answers.join().unwrap();
}

#[test]
fn reload_replaces_a_certificate_and_refuses_a_wrong_one() {
    let authority = Authority::new();
    for (name, subject) in
        [("one", "one.example"), ("new", "one.example"), ("two", "*.two.example"), ("other", "x")]
    {
        authority.sign(name, subject, 2999);
    }
    let config = |name: &str| Config::from_toml(&toml(&authority, name)).unwrap();
    let mut proxy = Proxy::start(&config("one"), Clock::system()).unwrap();
    let (client, address) = (authority.client(), proxy.address());
    fs::copy(authority.file("two.key"), authority.file("new.key")).unwrap();
    let error = proxy.reload(&config("new")).unwrap_err().to_string();
    assert!(
        error.starts_with("site[1].key = ") && error.contains("not the key of the certificate"),
        "{error}"
    );
    let get =
        || get(&client, address, "one.example", ("one.example", "/")).is_ok_and(|it| it.ends_with("one"));
    assert!(get());
    // A certificate that has expired: clients refuse it once it is in use.
    authority.sign("new", "one.example", 2002);
    proxy.reload(&config("new")).unwrap();
    assert!(wait_until(LIMIT, || !get()));
    proxy.reload(&config("one")).unwrap();
    assert!(wait_until(LIMIT, get));
}

#[test]
fn example_configuration_works() {
    let authority = Authority::new();
    for name in ["example.org", "www.example.org"] {
        authority.sign(name, name, 2999);
    }
    let (pages, api) = (Origin::plain(), Origin::plain());
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sites/strait.toml");
    let mut text = fs::read_to_string(example).unwrap();
    for (there, here) in [
        ("0.0.0.0:80", "127.0.0.1:0".to_owned()),
        ("0.0.0.0:443", "127.0.0.1:0".to_owned()),
        ("127.0.0.1:9128", "127.0.0.1:0".to_owned()),
        ("/etc/strait", authority.directory.path().display().to_string()),
        ("/var/cache/strait", authority.file("cache").display().to_string()),
        ("/srv/shop", authority.file("shop").display().to_string()),
        ("10.0.0.1:8080", format!("127.0.0.1:{}", pages.port)),
        // No server listens there.
        ("10.0.0.2:8080", "127.0.0.1:1".to_owned()),
        ("10.0.1.1:9000", format!("127.0.0.1:{}", api.port)),
        ("10.0.1.2:9000", "127.0.0.1:1".to_owned()),
    ] {
        assert!(text.contains(there), "{there}");
        text = text.replace(there, &here);
    }
    fs::create_dir_all(authority.file("shop/assets")).unwrap();
    fs::write(authority.file("shop/assets/a.css"), "body {}").unwrap();
    let hash = bcrypt::hash_with_salt("b", 4, [7; 16]).unwrap();
    fs::write(authority.file("staff"), format!("ann:{hash}\n")).unwrap();
    let proxy = Proxy::start(&Config::from_toml(&text).unwrap(), Clock::system()).unwrap();
    let (client, address) = (authority.client(), proxy.addresses().nth(1).unwrap());
    let www = |path: &str| get(&client, address, "www.example.org", ("www.example.org", path)).unwrap();
    assert!(www("/kept?100").starts_with("HTTP/1.1 200"));
    assert!(www("/assets/a.css").ends_with("body {}"));
    assert!(www("/robots.txt").ends_with("Disallow: /api\n"));
    assert_eq!((status(&www("/api/metrics")), status(&www("/api/%6detrics/x"))), ("403", "403"));
    assert_eq!(status(&www("/api/../api/metrics")), "400");
    assert_eq!((pages.requests(), api.seen.requests.load(Ordering::SeqCst)), (1, 0));
    www("/api/x");
    assert_eq!((pages.requests(), api.seen.requests.load(Ordering::SeqCst)), (1, 1));
    // Clients are told to use https, also by a hit in memory, and requests without TLS are
    // redirected.
    for path in ["/kept?100", "/kept?100", "/robots.txt", "/api/x"] {
        assert_eq!(field(&www(path), "Strict-Transport-Security"), Some("max-age=31536000"), "{path}");
    }
    let mut plain = connect(proxy.address());
    write!(plain, "GET /kept?100 HTTP/1.1\r\nHost: www.example.org\r\nConnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    plain.read_to_string(&mut response).unwrap();
    assert_eq!(status(&response), "308");
    assert!(field(&response, "Location").unwrap().ends_with("/kept?100"), "{response}");
    // No password is asked for without TLS.
    let mut plain = connect(proxy.address());
    write!(plain, "GET /staff HTTP/1.1\r\nHost: www.example.org\r\nConnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    plain.read_to_string(&mut response).unwrap();
    assert_eq!((status(&response), field(&response, "WWW-Authenticate")), ("308", None));
    assert!(field(&www("/staff"), "WWW-Authenticate").is_some_and(|it| it.contains("realm=\"staff\"")));
    assert_eq!(field(&www("/kept?100"), "X-Content-Type-Options"), Some("nosniff"));
    let before = api.seen.requests.load(Ordering::SeqCst);
    assert!(www("/api/v2/kept?100").starts_with("HTTP/1.1 200"));
    assert_eq!(api.seen.requests.load(Ordering::SeqCst), before + 1);
    let moved = get(&client, address, "example.org", ("example.org", "/a?b")).unwrap();
    assert_eq!((status(&moved), field(&moved, "Location")), ("308", Some("https://www.example.org/a?b")));
}

#[test]
fn certificate_of_another_name_is_noted_and_its_end_is_in_the_metrics() {
    let authority = Authority::new();
    for (name, subject) in [("one", "www.one.example"), ("two", "*.two.example"), ("other", "x")] {
        authority.sign(name, subject, 2999);
    }
    let toml = format!("admin.listen = \"127.0.0.1:0\"\n{}", toml(&authority, "one"));
    let checked = Config::from_toml(&toml).unwrap().checked().unwrap();
    let notes: Vec<_> = checked.notes().into_iter().filter(|note| note.contains("hosts")).collect();
    assert_eq!(
        notes,
        ["site[1].hosts: the certificate of the site is not for \"one.example\"; clients refuse it"]
    );
    let proxy = Proxy::start(checked.config(), Clock::system()).unwrap();
    let mut admin = connect(proxy.admin().unwrap());
    admin.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    admin.read_to_string(&mut text).unwrap();
    for host in ["one.example", "two.example", "*"] {
        let series = format!("strait_proxy_certificate_expiry_timestamp_seconds{{host=\"{host}\"}} ");
        let expiry: u64 = text.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse().unwrap();
        // The years 2998 to 3000.
        assert!((32_440_000_000..32_540_000_000).contains(&expiry), "{host}: {expiry}");
    }
}

#[test]
fn redirection_to_https_has_the_port_by_which_clients_come() {
    let authority = Authority::new();
    authority.sign("one", "one.example", 2999);
    let file = |name: &str| authority.file(name).display().to_string();
    for (port, expected) in [(443, "https://one.example/a"), (8443, "https://one.example:8443/a")] {
        let toml = format!(
            "workers = 1\nlisten = [\"127.0.0.1:0\"]\n[tls]\nlisten = [\"127.0.0.1:0\"]\nhttps_port = {port}\n\
             certificate = \"{}\"\nkey = \"{}\"\n[[site]]\nhttps = true\n[[site.route]]\nrespond = {{}}\n",
            file("one.pem"),
            file("one.key"),
        );
        let proxy = Proxy::start(&Config::from_toml(&toml).unwrap(), Clock::system()).unwrap();
        let mut plain = connect(proxy.address());
        write!(plain, "GET /a HTTP/1.1\r\nHost: one.example\r\nConnection: close\r\n\r\n").unwrap();
        let mut response = String::new();
        plain.read_to_string(&mut response).unwrap();
        assert_eq!((status(&response), field(&response, "Location")), ("308", Some(expected)));
    }
}

#[test]
fn log_has_the_version_of_tls() {
    let authority = Authority::new();
    authority.sign("one", "one.example", 2999);
    let (file, log) = (|name: &str| authority.file(name).display().to_string(), authority.file("log"));
    let toml = format!(
        "workers = 1\nlisten = [\"127.0.0.1:0\"]\nlog.access = \"{}\"\nlog.format = \"json\"\n[tls]\nlisten = [\"127.0.0.1:0\"]\n\
         certificate = \"{}\"\nkey = \"{}\"\n[[site]]\n[[site.route]]\nrespond = {{}}\n",
        log.display(),
        file("one.pem"),
        file("one.key"),
    );
    let proxy = Proxy::start(&Config::from_toml(&toml).unwrap(), Clock::system()).unwrap();
    let lines = || fs::read_to_string(&log).unwrap_or_default();
    let secure = proxy.addresses().nth(1).unwrap();
    get(&authority.client(), secure, "one.example", ("one.example", "/")).unwrap();
    assert!(
        wait_until(LIMIT, || lines().contains("\"scheme\":\"https\",\"tls\":\"TLSv1.3\"")),
        "{}",
        lines()
    );
    let mut plain = connect(proxy.address());
    write!(plain, "GET / HTTP/1.1\r\nHost: one.example\r\nConnection: close\r\n\r\n").unwrap();
    assert!(wait_until(LIMIT, || lines().lines().count() == 2));
    assert!(lines().lines().nth(1).unwrap().contains("\"scheme\":\"http\",\"status\""), "{}", lines());
}
