# Varnish as a caching reverse proxy. The built-in rules pass uncacheable requests.
vcl 4.1;

backend origin {
    .host = "@ORIGIN_HOST@";
    .port = "@ORIGIN_PORT@";
    .max_connections = 4096;
}
