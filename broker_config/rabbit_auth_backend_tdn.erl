%% Stands between RabbitMQ and rabbit_auth_backend_http, which asks the guard, keeps enough connections to it open, and remembers more of its yeses.
%%
%% Erlang's HTTP client keeps two connections, and for every question beyond those opens one more and closes it: a mutual TLS
%% handshake each, of which a guard does a hundred a second. With a thousand entities at once (bench/load.py) the guard was so
%% busy with them that it missed its own lease, and denied everybody everything.
%%
%% A channel remembers its last 12 decisions. Publishing to 13 topics in rotation, it asks the guard before each message,
%% and publishes 1,800 a second instead of 27,000 (bench/grants.py). Here a channel remembers up to 10,000 topics.
%%
%% Promises:
%% - Only "this user may write to this topic's exchange" is remembered, and only a yes. All else is handed on, each time.
%% - What is remembered lies in the channel's own process and ends with it. The guard revokes by closing the connection,
%%   which ends RabbitMQ's memory and ours in one moment; no other channel knows any of it, so there is nothing to flush.
%% - Nothing outlives RabbitMQ's own memory: when a channel forgets its decisions, which it does when it is idle for more
%%   than a second, it forgets these too.
%%
%% Written without RabbitMQ's header files, so that it compiles without them, and for 3.10 and 4.x alike.
-module(rabbit_auth_backend_tdn).

-export([user_login_authentication/2, user_login_authorization/2]).
-export([check_vhost_access/3, check_resource_access/4, check_topic_access/4]).
-export([state_can_expire/0, expiry_timestamp/1]).

%% Keys of the channel's process dictionary. The second is rabbit_channel's own. Where it is missing, in a process that is
%% no channel or in a version that calls it something else, nothing is remembered from one question to the next.
-define(OURS, rabbit_auth_backend_tdn).
-define(RABBITMQS, permission_cache).

%% Connections to the guard that are kept, and questions that wait for each of them. A guard answers in a millisecond.
-define(CONNECTIONS, 32).
-define(WAITING, 100).

%% Topics that a channel remembers before it begins anew. Bounds its memory, at about 140 bytes a topic.
-define(MOST, 10000).

user_login_authentication(Username, Properties) ->
    keep_connections(),
    rabbit_auth_backend_http:user_login_authentication(Username, as_its_own(Properties)).

user_login_authorization(Username, Properties) ->
    rabbit_auth_backend_http:user_login_authorization(Username, as_its_own(Properties)).

check_vhost_access(User, VirtualHost, Data) ->
    rabbit_auth_backend_http:check_vhost_access(User, VirtualHost, Data).

check_topic_access(User, Resource, Permission, Context) ->
    rabbit_auth_backend_http:check_topic_access(User, Resource, Permission, Context).

check_resource_access(User, Resource, Permission, Context) ->
    %% Looked at for every question, because the first one after RabbitMQ forgot may be about something else.
    Remembered = remembered(),
    case question(User, Resource, Permission, Context) of
        none ->
            rabbit_auth_backend_http:check_resource_access(User, Resource, Permission, Context);
        Question when is_map_key(Question, Remembered) ->
            true;
        Question ->
            Answer = rabbit_auth_backend_http:check_resource_access(User, Resource, Permission, Context),
            %% `true` and nothing else: a refusal or an error is asked about again.
            Answer =:= true andalso remember(Question, Remembered),
            Answer
    end.

%% RabbitMQ 3.x asks the first, 4.x the second.
state_can_expire() ->
    rabbit_auth_backend_http:state_can_expire().

expiry_timestamp(User) ->
    rabbit_auth_backend_http:expiry_timestamp(User).

%% Once: nobody is asked about anything before a first login.
keep_connections() ->
    case persistent_term:get(?MODULE, unset) of
        unset ->
            ok = httpc:set_options([{max_sessions, ?CONNECTIONS}, {max_keep_alive_length, ?WAITING}]),
            persistent_term:put(?MODULE, set);
        set ->
            ok
    end.

%% 4.x hands a backend the credentials of an earlier login under the backend's name, when a plugin logs in once more for
%% its client. Under ours the HTTP backend would drop a password, and the guard would take it for a login by certificate.
as_its_own(Properties) when is_list(Properties) ->
    [
        case Property of
            {?MODULE, Value} -> {rabbit_auth_backend_http, Value};
            _ -> Property
        end
     || Property <- Properties
    ];
as_its_own(Properties) ->
    Properties.

%% All that the guard would be told, or `none` for what is never remembered. A topic's exchange is named by its UUID.
question({auth_user, Username, Tags, _}, Resource, write, Context) when
    element(1, Resource) =:= resource, element(3, Resource) =:= exchange
->
    case element(4, Resource) of
        <<_:8/binary, $-, _:4/binary, $-, _:4/binary, $-, _:4/binary, $-, _:12/binary>> = Name ->
            {Name, element(2, Resource), Username, Tags, Context};
        _ ->
            none
    end;
question(_, _, _, _) ->
    none.

remembered() ->
    case {get(?RABBITMQS), get(?OURS)} of
        {undefined, _} ->
            erase(?OURS),
            #{};
        {_, undefined} ->
            #{};
        {_, Ours} ->
            Ours
    end.

remember(Question, Remembered) ->
    %% A copy: the name at hand is a slice of the packet that it came in, and would keep the whole packet in memory.
    Own = setelement(1, Question, binary:copy(element(1, Question))),
    case map_size(Remembered) < ?MOST of
        true -> put(?OURS, Remembered#{Own => true});
        false -> put(?OURS, #{Own => true})
    end.
