"""Builds on the laptop's side: made, named by their content, kept in a folder, compared, bundled, and brought to the host.

What the parts are for: :mod:`.manifest` reads a build and its id; :mod:`.make` makes one of a wheel and patches (:mod:`.source`, :mod:`.wheel`,
:mod:`.about`, :mod:`.patches`); :mod:`.store` is the folder that holds them; :mod:`.diff` compares two; :mod:`.push` brings one to the host;
:mod:`.bundle` packs what a host without a registry needs, :mod:`.carry` brings that there.
"""
